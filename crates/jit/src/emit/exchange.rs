//! Values of any type in shared memory, each in a place of eight bytes.

use fercuda_ptx::build::{MemoryElement, Ptr, Reg, Shared};

use super::value::DynValue;

/// Writes a value to a place; bool is not written.
pub(super) fn put<'k>(to: Ptr<'k, Shared, u64>, at: Reg<'k, u32>, value: DynValue<'k>) {
    fn of<'k, T: MemoryElement>(to: Ptr<'k, Shared, u64>, at: Reg<'k, u32>) -> Ptr<'k, Shared, T> {
        to.index(at).cast()
    }
    match value {
        DynValue::F64(x) => of::<f64>(to, at).store(x),
        DynValue::F32(x) => of::<f32>(to, at).store(x),
        DynValue::I32(x) => of::<i32>(to, at).store(x),
        DynValue::U32(x) => of::<u32>(to, at).store(x),
        DynValue::I64(x) => of::<i64>(to, at).store(x),
        DynValue::U64(x) => of::<u64>(to, at).store(x),
        DynValue::Bool(_) => {}
    }
}

/// The value of a place, of the type of `like`.
pub(super) fn get<'k>(
    from: Ptr<'k, Shared, u64>,
    at: Reg<'k, u32>,
    like: DynValue<'k>,
) -> DynValue<'k> {
    let here = from.index(at);
    match like {
        DynValue::F64(_) => DynValue::F64(here.cast::<f64>().load()),
        DynValue::F32(_) => DynValue::F32(here.cast::<f32>().load()),
        DynValue::I32(_) => DynValue::I32(here.cast::<i32>().load()),
        DynValue::U32(_) => DynValue::U32(here.cast::<u32>().load()),
        DynValue::I64(_) => DynValue::I64(here.cast::<i64>().load()),
        DynValue::U64(_) => DynValue::U64(here.cast::<u64>().load()),
        DynValue::Bool(x) => DynValue::Bool(x),
    }
}
