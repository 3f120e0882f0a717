//! Every public symbol of the driver's library, each a jump through a slot.
//!
//! A slot leads to a stub that binds it: when the function is called first, the
//! slot gets the door that governs it, or else the driver's own function. From
//! then on a call is one jump, and the caller's registers, stack and return
//! address are as it left them.
//!
//! Invariant: nothing here looks at arguments, so functions whose types are not
//! known can be passed on.

use core::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering::Release};

use fercuda_cuda_sys::Symbol;

use fercuda_regime::guarded;

use crate::bind;

/// Binds the slot with this number and says where it leads now.
///
/// Called by `bind_and_jump` alone, with the arguments of some function saved.
extern "C" fn bind_slot(index: usize) -> *mut c_void {
    match guarded(|| Some((SLOTS.get(index)?, bind::target(index)))) {
        Some((slot, address)) => {
            slot.store(address, Release);
            address
        }
        None => bind::no_function as *mut c_void,
    }
}

/// Saves what arguments may be in, asks where to go, and goes there.
#[unsafe(naked)]
unsafe extern "C" fn bind_and_jump() {
    // The slot's number is in r11, which a call may destroy. At entry the stack
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

/// One exported symbol and the stub that binds its slot.
macro_rules! export {
    ($name:ident = $index:expr) => {
        /// Jumps to where its slot leads.
        // SAFETY: this library stands in the driver's place, so nothing else has this name.
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

/// A name that is in no table of types, by its place behind those that are.
macro_rules! untyped {
    ($($name:ident)*) => {
        #[expect(non_camel_case_types, reason = "the driver's own names")]
        enum Untyped { $($name,)* }

        /// Exported names without a type, in the order of their slots.
        pub(crate) const UNTYPED: &[&str] = &[$(stringify!($name)),*];
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

            /// Those without a type, in the order of their slots.
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

            /// In the order of the slots.
            pub(super) const ALL: &[unsafe extern "C" fn()] = &[
                $($name, $($twin,)?)*
                $($untyped,)*
                $($later,)*
            ];
        }
    };
}

/// Slots of functions whose types are known.
pub(crate) const TYPED: usize = Symbol::ALL.len();

/// All slots.
pub(crate) const COUNT: usize = TYPED + UNTYPED.len();

/// Where each function leads.
static SLOTS: [AtomicPtr<c_void>; COUNT] = {
    let mut slots = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];
    let mut n = 0;
    while n < COUNT {
        slots[n] = AtomicPtr::new(binders::ALL[n] as *mut c_void);
        n += 1;
    }
    slots
};

/// The exported name with this slot.
pub(crate) fn name(index: usize) -> &'static str {
    match Symbol::ALL.get(index) {
        Some(symbol) => symbol.name(),
        None => UNTYPED[index - TYPED],
    }
}

/// A function without a type, by its exported name: the jump to where it leads,
/// which is found when it is called first.
pub(crate) fn untyped(exported: &str) -> Option<*mut c_void> {
    let at = UNTYPED.iter().position(|name| *name == exported)?;
    Some(*symbols::UNTYPED.get(at)? as *mut c_void)
}

macro_rules! with_untyped {
    ($($table:tt)*) => {
        fercuda_cuda_sys::for_each_untyped_fn! {
            all,
            [$($table)*]
            // Later than the table of types.
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
