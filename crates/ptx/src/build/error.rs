//! Target architectures, and errors of a module that is written.

use std::fmt;

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
