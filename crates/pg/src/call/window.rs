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

    /// Runs `work` on the partition's value of type `T`: new in its first row, and dropped with the partition. A call
    /// inside `work` gets a new value, which is not kept.
    pub fn in_partition<T: Default + 'static, R, E: From<PgError>>(
        &self,
        work: impl FnOnce(&mut T) -> Result<R, E>,
    ) -> Result<R, E> {
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
        kept.with(work)
    }
}

/// A function's values for a partition, one for each type. A value in use is taken out.
#[derive(Default)]
struct Kept(RefCell<Vec<Box<dyn Any>>>);

impl Kept {
    /// Runs `work` on the value of this type, or a new one. A panic loses it.
    fn with<T: Default + 'static, R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.take::<T>().unwrap_or_default();
        let result = work(&mut value);
        self.take::<T>(); // the value of a call inside
        self.0.borrow_mut().push(value);
        result
    }

    fn take<T: 'static>(&self) -> Option<Box<T>> {
        let mut values = self.0.borrow_mut();
        let place = values.iter().position(|value| value.is::<T>())?;
        values.swap_remove(place).downcast().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Replaces the value of type `T` and returns the earlier one.
    fn swap<T: Default + 'static>(kept: &Kept, value: T) -> T {
        kept.with(|known| std::mem::replace(known, value))
    }

    #[test]
    fn a_value_of_each_type_is_kept() {
        let kept = Kept::default();
        assert_eq!((swap(&kept, 7_u64), swap(&kept, String::from("a"))), (0, String::new()));
        // Has the same size as the first type.
        assert_eq!(swap(&kept, 0.5_f64), 0.0);
        assert_eq!((swap(&kept, 8_u64), swap(&kept, String::new())), (7, "a".into()));
        assert_eq!((swap(&kept, 0_u64), swap(&kept, 0.0_f64)), (8, 0.5));
    }

    #[test]
    fn a_call_inside_has_a_value_of_its_own() {
        let kept = Kept::default();
        swap(&kept, vec![1]);
        kept.with(|outer: &mut Vec<i32>| {
            assert!(swap(&kept, vec![2]).is_empty());
            assert_eq!(swap(&kept, 3_u8), 0);
            outer.push(4);
        });
        assert_eq!((swap(&kept, vec![]), swap(&kept, 0_u8)), (vec![1, 4], 3));
    }

    #[test]
    fn after_a_panic_there_is_a_new_value() {
        let kept = Kept::default();
        swap(&kept, 1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            kept.with(|value: &mut i32| {
                *value = 2;
                panic!("at work");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!((swap(&kept, 3), swap(&kept, 0)), (0, 3));
    }
}
