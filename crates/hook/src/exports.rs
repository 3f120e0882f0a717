//! Exported symbols of the driver's library, each an indirect jump through a slot.
//!
//! Binding is lazy, as in a PLT. A slot first holds a stub that binds it: at the first
//! call, the slot gets the interposed function or else the driver's own. From then on a
//! call is one jump, with the caller's registers, stack and return address unchanged.
//!
//! Invariant: arguments are never inspected, so functions of unknown type can be passed on.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering::Release};

use fercuda_cuda_sys::Symbol;
use fercuda_regime::{catch_panic, real_driver};

use crate::bind;

/// Binds the slot with this index and returns its target.
///
/// Called only by `bind_and_jump`, which has saved the arguments of some function.
extern "C" fn bind_slot(index: usize) -> *mut c_void {
    match catch_panic(|| {
        Some((
            SLOTS.get(index)?,
            bind::target(index, name(index), noting_stub),
        ))
    }) {
        Some((slot, address)) => {
            slot.store(address, Release);
            address
        }
        None => bind::no_function as *mut c_void,
    }
}

/// Saves the argument registers, binds the slot and jumps to its target.
#[unsafe(naked)]
unsafe extern "C" fn bind_and_jump() {
    // The slot's index is in r11, which a call may clobber. At entry the stack
    // is 8 off a multiple of 16, as at the entry of any function; seven words
    // and 128 bytes of vectors keep it a multiple for the call.
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "sub rsp, 128",
        "movdqu [rsp], xmm0",
        "movdqu [rsp + 16], xmm1",
        "movdqu [rsp + 32], xmm2",
        "movdqu [rsp + 48], xmm3",
        "movdqu [rsp + 64], xmm4",
        "movdqu [rsp + 80], xmm5",
        "movdqu [rsp + 96], xmm6",
        "movdqu [rsp + 112], xmm7",
        "mov rdi, r11",
        "call {bind}",
        "mov r11, rax",
        "movdqu xmm0, [rsp]",
        "movdqu xmm1, [rsp + 16]",
        "movdqu xmm2, [rsp + 32]",
        "movdqu xmm3, [rsp + 48]",
        "movdqu xmm4, [rsp + 64]",
        "movdqu xmm5, [rsp + 80]",
        "movdqu xmm6, [rsp + 96]",
        "movdqu xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp r11",
        bind = sym bind_slot,
    )
}

/// Defines one exported symbol.
macro_rules! export {
    ($name:ident = $index:expr) => {
        /// Jumps to its slot's target.
        // SAFETY: this library takes the driver's place, so nothing else has this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "jmp qword ptr [rip + {slots} + {offset}]",
                slots = sym SLOTS,
                offset = const 8 * ($index),
            )
        }
    };
}

/// Defines the stub that binds one slot.
macro_rules! binder {
    ($name:ident = $index:expr) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov r11d, {index}",
                "jmp {bind}",
                index = const $index,
                bind = sym bind_and_jump,
            )
        }
    };
}

/// Defines the symbols without a known type; their slots follow the typed ones.
macro_rules! untyped {
    ($($name:ident)*) => {
        #[expect(non_camel_case_types, reason = "the driver's own names")]
        enum Untyped { $($name,)* }

        /// Exported names without a known type, in slot order.
        const UNTYPED: &[&str] = &[$(stringify!($name)),*];
    };
}

macro_rules! all {
    (
        [$($name:ident $base:literal $since:literal [$($twin:ident $twin_since:literal)?] $args:tt;)*]
        [$($later:ident)*]
        $($untyped:ident)*
    ) => {
        untyped! { $($untyped)* $($later)* }

        mod symbols {
            use super::{SLOTS, Symbol, TYPED, Untyped};
            $(
                export! { $name = Symbol::$name as usize }
                $(export! { $twin = Symbol::$twin as usize })?
            )*
            $(export! { $untyped = TYPED + Untyped::$untyped as usize })*
            $(export! { $later = TYPED + Untyped::$later as usize })*

            /// Symbols without a known type, in slot order.
            pub(super) const UNTYPED: &[unsafe extern "C" fn()] = &[
                $($untyped,)*
                $($later,)*
            ];
        }

        #[expect(non_snake_case, reason = "the driver's own names")]
        mod binders {
            use super::{Symbol, TYPED, Untyped, bind_and_jump};
            $(
                binder! { $name = Symbol::$name as usize }
                $(binder! { $twin = Symbol::$twin as usize })?
            )*
            $(binder! { $untyped = TYPED + Untyped::$untyped as usize })*
            $(binder! { $later = TYPED + Untyped::$later as usize })*

            /// All binders, in slot order.
            pub(super) const ALL: &[unsafe extern "C" fn()] = &[
                $($name, $($twin,)?)*
                $($untyped,)*
                $($later,)*
            ];
        }
    };
}

/// The number of slots of functions with a known type.
const TYPED: usize = Symbol::ALL.len();

/// The number of slots.
const COUNT: usize = TYPED + UNTYPED.len();

/// The target of each function.
static SLOTS: [AtomicPtr<c_void>; COUNT] = {
    let mut slots = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];
    let mut n = 0;
    while n < COUNT {
        slots[n] = AtomicPtr::new(binders::ALL[n] as *mut c_void);
        n += 1;
    }
    slots
};

/// The exported name of a slot.
fn name(index: usize) -> &'static str {
    match Symbol::ALL.get(index) {
        Some(symbol) => symbol.name(),
        None => UNTYPED[index - TYPED],
    }
}

/// The exported symbol of a name without a known type; its slot is bound at the first call.
fn untyped(exported: &str) -> Option<*mut c_void> {
    let at = UNTYPED.iter().position(|name| *name == exported)?;
    Some(*symbols::UNTYPED.get(at)? as *mut c_void)
}

/// What to hand out for a function that creates contexts and is not interposed: the
/// exported symbol of the same address. Binding its slot, at the first call, notes that.
pub(crate) fn noting_stub(requested: &[u8], address: NonNull<c_void>) -> Option<NonNull<c_void>> {
    let real = real_driver()??;
    let is_it = |name: &&&str| {
        name.as_bytes().starts_with(requested) && real.find(name).is_some_and(|own| own == address)
    };
    let name = UNTYPED.iter().find(is_it)?;
    NonNull::new(untyped(name)?)
}

macro_rules! with_untyped {
    ($($table:tt)*) => {
        fercuda_cuda_sys::for_each_untyped_fn! {
            all,
            [$($table)*]
            // Newer than the table of types.
            [
                cuCheckpointOperationComplete
                cuGraphAddNode_v3
                cuLogicalEndpointAddDevice
                cuLogicalEndpointBindAddr
                cuLogicalEndpointBindMem
                cuLogicalEndpointCreate
                cuLogicalEndpointDestroy
                cuLogicalEndpointExport
                cuLogicalEndpointGetLimits
                cuLogicalEndpointIdRelease
                cuLogicalEndpointIdReserve
                cuLogicalEndpointImport
                cuLogicalEndpointQuery
                cuLogicalEndpointUnbind
                cuMemGetLocationInfo
                cuMulticastBindAddr_v2
                cuMulticastBindMem_v2
                cuStreamBeginCaptureToCig
                cuStreamBeginCaptureToCig_ptsz
                cuStreamEndCaptureToCig
                cuStreamEndCaptureToCig_ptsz
            ]
        }
    };
}

fercuda_cuda_sys::for_each_driver_fn!(with_untyped);
