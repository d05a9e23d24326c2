//! A call by a window aggregate node: its arguments, and what it keeps from row to row of a partition.

use std::ffi::{c_int, c_void};

use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::{PgMemoryContexts, pg_sys};

use super::Call;
use crate::pg::error::{Error, Result};

// Of windowapi.h, which pgrx does not bind: called through its guard, since an argument can raise any error.
unsafe extern "C-unwind" {
    fn WinGetPartitionLocalMemory(
        window: *mut pg_sys::WindowObjectData,
        size: pg_sys::Size,
    ) -> *mut c_void;
    fn WinGetFuncArgCurrent(
        window: *mut pg_sys::WindowObjectData,
        argument: c_int,
        is_null: *mut bool,
    ) -> pg_sys::Datum;
}

impl Call {
    /// The window function's view of its partition.
    ///
    /// # Errors
    /// [`Error::Declaration`] where it is not declared as a window function.
    fn window(&self) -> Result<*mut pg_sys::WindowObjectData> {
        // SAFETY: fcinfo is that of the call; a context node of this type is a WindowObjectData.
        unsafe {
            let context = (*self.fcinfo).context;
            let is_window =
                !context.is_null() && (*context).type_ == pg_sys::NodeTag::T_WindowObjectData;
            if is_window { Ok(context.cast()) } else { Err(Error::Declaration) }
        }
    }

    /// Evaluates the arguments for the current row: those of a window function are not among its own. They live
    /// as long as the call.
    ///
    /// # Errors
    /// As [`window`](Call::window).
    pub fn evaluate_arguments(&self) -> Result<()> {
        let window = self.window()?;
        // SAFETY: fcinfo has room for so many arguments, and nobody else looks at them.
        unsafe {
            let count = (*self.fcinfo).nargs as usize;
            let arguments = (*self.fcinfo).args.as_mut_ptr();
            for n in 0..count {
                let mut is_null = false;
                let value = pg_guard_ffi_boundary(|| {
                    WinGetFuncArgCurrent(window, n as c_int, &mut is_null)
                });
                *arguments.add(n) = pg_sys::NullableDatum { value, isnull: is_null };
            }
        }
        Ok(())
    }

    /// Runs `work` on what the function keeps from row to row of the partition, which is new in its first row and
    /// dropped with the partition.
    ///
    /// # Errors
    /// As [`window`](Call::window), and those of the work.
    pub fn in_partition<T: Default + 'static, R>(
        &self,
        work: impl FnOnce(&mut T) -> Result<R>,
    ) -> Result<R> {
        let window = self.window()?;
        // SAFETY: the memory is zeroed, and the partition's; its context drops what it points to. The work calls
        // nothing that leads to another call of the same partition.
        unsafe {
            let kept: *mut *mut T =
                pg_guard_ffi_boundary(|| WinGetPartitionLocalMemory(window, size_of::<*mut T>()))
                    .cast();
            if (*kept).is_null() {
                let mut context = PgMemoryContexts::of(kept.cast()).ok_or(Error::Declaration)?;
                *kept = context.leak_and_drop_on_delete(T::default());
            }
            work(&mut **kept)
        }
    }
}
