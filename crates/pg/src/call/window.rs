//! A call by a window aggregate node: its arguments and its memory for a partition.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::{PgMemoryContexts, pg_sys};

use super::Call;
use crate::error::{PgError, Result};

// From windowapi.h, which pgrx does not bind. Called through its guard, because an argument can raise any error.
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
    /// Returns the window object. [`PgError::Declaration`]: the function is not declared as a window function.
    fn window(&self) -> Result<*mut pg_sys::WindowObjectData> {
        // SAFETY: fcinfo is that of the call; a context node of this type is a WindowObjectData.
        unsafe {
            let context = (*self.fcinfo).context;
            let is_window =
                !context.is_null() && (*context).type_ == pg_sys::NodeTag::T_WindowObjectData;
            if is_window { Ok(context.cast()) } else { Err(PgError::Declaration) }
        }
    }

    /// Evaluates the arguments for the current row: a window function does not get them in its call. They live as long
    /// as the call.
    pub fn evaluate_arguments(&self) -> Result<()> {
        let window = self.window()?;
        // SAFETY: fcinfo has space for this number of arguments, and no other code reads them.
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

    /// Runs `work` on the partition's value: new in its first row, and dropped with the partition. A call inside `work`
    /// gets a new value, which is not kept, and a call for another type a new one in its place.
    pub fn in_partition<T: Default + 'static, R, E: From<PgError>>(
        &self,
        work: impl FnOnce(&mut T) -> Result<R, E>,
    ) -> Result<R, E> {
        type Kept = RefCell<Option<Box<dyn Any>>>;
        let window = self.window()?;
        // SAFETY: the memory is zeroed, belongs to the partition and is used only here, so it is null or a Kept, which
        // is written only through its RefCell, and dropped by the partition's context after the call.
        let kept = unsafe {
            let place: *mut *mut Kept = pg_guard_ffi_boundary(|| {
                WinGetPartitionLocalMemory(window, size_of::<*mut Kept>())
            })
            .cast();
            if (*place).is_null() {
                let mut context = PgMemoryContexts::of(place.cast()).ok_or(PgError::Declaration)?;
                *place = context.leak_and_drop_on_delete(Kept::default());
            }
            &**place
        };
        // Taken out while it is in use.
        let known = kept.take().and_then(|value| value.downcast::<T>().ok());
        let mut value = known.unwrap_or_default();
        let result = work(&mut value);
        kept.replace(Some(value));
        result
    }
}
