//! Kernel builder in Rust: typed registers, structured control flow, readable PTX.
//!
//! A [`ModuleBuilder`] holds kernels; each is written by a closure over a [`Kernel`].
//! Registers are typed by Rust's own number types, so that a mistaken operand does not
//! compile; what types cannot exclude (a register used outside of the branch that sets it,
//! two parameters of one name, too much shared memory) is the `Err` of
//! [`ModuleBuilder::finish`]. Nothing here panics.
//!
//! ```
//! use fercuda_ptx::build::{Arch, ModuleBuilder};
//!
//! let mut module = ModuleBuilder::new(Arch::SM_80);
//! module.kernel("scale", |k| {
//!     let x = k.param_ptr::<f32>("x");
//!     let factor = k.param::<f32>("factor");
//!     let n = k.param::<u32>("n");
//!     let i = k.global_id();
//!     let in_range = i.lt(n).named("in_range");
//!     k.if_(in_range, || {
//!         let xi = x.index(i);
//!         xi.store(xi.load() * factor);
//!     });
//! });
//! let module = module.finish()?;
//! assert_eq!(module.items.len(), 1);
//! # Ok::<(), fercuda_ptx::build::BuildError>(())
//! ```
//!
//! Adding an integer to a float does not compile:
//! ```compile_fail,E0277
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     let a = k.param::<f32>("a");
//!     let n = k.param::<u32>("n");
//!     let sum = a + n;
//! });
//! ```
//! Nor does storing a float through a pointer to integers:
//! ```compile_fail,E0277
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     let p = k.param_ptr::<u32>("p");
//!     p.store(1.0f32);
//! });
//! ```
//! Nor a number as a condition:
//! ```compile_fail,E0308
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     let n = k.param::<u32>("n");
//!     k.if_(n, || k.ret());
//! });
//! ```
//! Nor writing constant memory, nor an atomic addition to bytes:
//! ```compile_fail,E0599
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     k.constant::<f32>("table", &[1.0]).store(2.0f32);
//! });
//! ```
//! ```compile_fail,E0599
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     k.param_ptr::<u8>("p").atomic_add(1u32);
//! });
//! ```
//! Nor taking a register out of its kernel:
//! ```compile_fail
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! let mut kept = None;
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     kept = Some(k.param::<f32>("a"));
//! });
//! ```
//!
//! Elsewhere: the tree ([`crate::ast`]), its text ([`crate::print`]), finished kernels
//! ([`crate::kernels`]).

/// The recipe's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/recipes/build-a-kernel.md")]
struct Recipe;

mod finish;
mod kernel;
mod math;
mod ptr;
mod reg;
mod tensor;
mod types;
mod warp;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ast::{Linkage, Module};
use crate::words::Op;

pub use kernel::{Kernel, Loop, STATIC_SHARED_LIMIT};
pub use ptr::{
    Atomic, Cache, Const, Generic, Global, Index, Local, Ptr, PtrVar, Shared, Space, Writable,
};
pub use reg::{Arg, Divide, Pred, Reg, Signed, Src, Var};
pub use types::{
    AtomicAdd, AtomicMinMax, AtomicSwap, Bf16, Bf16x2, BitOps, Bits32, ConstElement, Convert,
    Element, F16, F16x2, Float, Int, Num, Ordered, Scalar, Tf32, Type,
};
pub use warp::FULL_MASK;

/// A target architecture, `sm_NN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arch(u32);

impl Arch {
    /// Turing.
    pub const SM_75: Arch = Arch(75);
    /// Ampere (A100).
    pub const SM_80: Arch = Arch(80);
    /// Hopper (H100, H200).
    pub const SM_90: Arch = Arch(90);

    /// `sm_{number}`: 86 for `sm_86`.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Arch(number)
    }

    /// 80 for `sm_80`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.0)
    }
}

/// What is wrong with a module that was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A name that is no PTX identifier, or is a word of PTX.
    #[error(
        "kernel `{kernel}`: `{name}` cannot be a name in PTX\ntry: a letter first, then letters, digits and `_`; not an opcode"
    )]
    BadName {
        /// Kernel in which it was given.
        kernel: String,
        /// As given.
        name: String,
    },
    /// Two kernels, or two parameters or variables of a kernel, have one name.
    #[error("kernel `{kernel}`: the name `{name}` is given twice")]
    DuplicateName {
        /// Kernel in which it was given again.
        kernel: String,
        /// The name.
        name: String,
    },
    /// A register is read outside of the branch or loop body that sets it.
    #[error(
        "kernel `{kernel}`: register `%{register}` is read outside of the branch or loop that sets it\n\
         try: a `var` declared before the branch"
    )]
    RegisterOutOfScope {
        /// Kernel.
        kernel: String,
        /// Its name, or type and number.
        register: String,
    },
    /// A register of another kernel is read.
    #[error(
        "kernel `{kernel}`: a register of another kernel is read\ntry: pass the value as a parameter"
    )]
    ForeignRegister {
        /// Kernel that reads it.
        kernel: String,
    },
    /// Static shared memory exceeds what hardware gives.
    #[error(
        "kernel `{kernel}`: {bytes} bytes of static shared memory, at most {limit} exist\n\
         try: `dynamic_shared`, sized at launch"
    )]
    TooMuchShared {
        /// Kernel.
        kernel: String,
        /// Wanted so far.
        bytes: u64,
        /// Most there can be.
        limit: u64,
    },
    /// Parameters exceed what a launch carries.
    #[error(
        "kernel `{kernel}`: {bytes} bytes of parameters, at most {limit} can be passed\ntry: a pointer to them"
    )]
    TooManyParams {
        /// Kernel.
        kernel: String,
        /// Wanted so far.
        bytes: u64,
        /// Most there can be.
        limit: u64,
    },
    /// A block size that no launch can have.
    #[error("kernel `{kernel}`: {threads} threads a block; a block has 1 to 1024")]
    BadBlock {
        /// Kernel.
        kernel: String,
        /// Product of the dimensions.
        threads: u32,
    },
    /// A barrier that does not exist.
    #[error(
        "kernel `{kernel}`: barrier {id} for {threads} threads; barriers are 0 to 15, for multiples of 32 threads"
    )]
    BadBarrier {
        /// Kernel.
        kernel: String,
        /// As given.
        id: u32,
        /// As given.
        threads: u32,
    },
    /// A constant offset beyond 2^31 bytes.
    #[error(
        "kernel `{kernel}`: an offset of {elements} elements exceeds 2^31 bytes\ntry: `index` with a register"
    )]
    OffsetTooLarge {
        /// Kernel.
        kernel: String,
        /// As given.
        elements: i64,
    },
    /// An instruction that the target lacks.
    #[error("kernel `{kernel}`: {what} needs sm_{needs}, the target is {target}")]
    NeedsArch {
        /// Kernel.
        kernel: String,
        /// Which instruction.
        what: String,
        /// Least architecture.
        needs: u32,
        /// Architecture of the module.
        target: Arch,
    },
}

/// A module being written.
pub struct ModuleBuilder {
    version: (u32, u32),
    arch: Arch,
    kernels: Vec<kernel::KernelState>,
    error: Option<BuildError>,
}

impl ModuleBuilder {
    /// An empty module for `arch`, in PTX 8.0, which drivers of CUDA 12.0 and later read.
    #[must_use]
    pub fn new(arch: Arch) -> Self {
        ModuleBuilder {
            version: (8, 0),
            arch,
            kernels: Vec::new(),
            error: None,
        }
    }

    /// Sets `.version`.
    #[must_use]
    pub fn version(mut self, major: u32, minor: u32) -> Self {
        self.version = (major, minor);
        self
    }

    /// Writes the kernel `name`. The body runs at once; it ends with an implied return.
    pub fn kernel(&mut self, name: &str, body: impl for<'k> FnOnce(&'k Kernel)) -> &mut Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let kernel = Kernel::new(name, self.arch, NEXT.fetch_add(1, Ordering::Relaxed));
        if !is_identifier(name) {
            kernel.fail(|k| BuildError::BadName {
                kernel: k.to_owned(),
                name: name.to_owned(),
            });
        } else if self.kernels.iter().any(|k| k.entry == name) {
            kernel.fail(|k| BuildError::DuplicateName {
                kernel: k.to_owned(),
                name: name.to_owned(),
            });
        }
        body(&kernel);
        let mut state = kernel.state.into_inner();
        self.share_globals(&mut state);
        if self.error.is_none() {
            self.error = state.error.take();
        }
        self.kernels.push(state);
        self
    }

    /// Leaves out of `state` the dynamic shared memory that an earlier kernel declared alike;
    /// other names may be given once.
    fn share_globals(&self, state: &mut kernel::KernelState) {
        let mut globals = std::mem::take(&mut state.globals);
        globals.retain(|global| {
            let name = state.text(global.name);
            let earlier = self
                .kernels
                .iter()
                .find_map(|k| k.globals.iter().find(|g| k.text(g.name) == name));
            let alike = earlier.is_some_and(|e| {
                (e.linkage, e.ty, e.align) == (Linkage::Extern, global.ty, global.align)
                    && global.linkage == Linkage::Extern
            });
            let taken = earlier.is_some() || self.kernels.iter().any(|k| k.entry == name);
            if taken && !alike && state.error.is_none() {
                state.error = Some(BuildError::DuplicateName {
                    kernel: state.entry.clone(),
                    name: name.to_owned(),
                });
            }
            !alike
        });
        state.globals = globals;
    }

    /// The module.
    ///
    /// # Errors
    /// The first error, in the order of the builder's calls.
    pub fn finish(self) -> Result<Module, BuildError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(finish::module(self.version, self.arch, self.kernels)),
        }
    }
}

/// Whether `name` can name a kernel, parameter or variable.
fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.len() > usize::from(name.starts_with('_'))
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !Op::ALL.iter().any(|op| op.text() == name)
        && name != "WARP_SZ"
}
