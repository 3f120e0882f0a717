//! Interface of a module: its kernels, parameters and variables, and why it cannot be loaded.

use std::sync::Arc;

/// A module that cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct CompileError {
    /// 1-based PTX line, 0 if none.
    pub line: u32,
    /// What is wrong.
    pub message: String,
}

/// A kernel's outside.
#[derive(Debug, Clone, Default)]
pub struct KernelInfo {
    /// Name.
    pub name: Arc<str>,
    /// Parameters in order.
    pub params: Vec<ParamLayout>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Bytes of shared memory, without the dynamic part.
    pub static_shared_bytes: u32,
    /// Bytes of local memory a thread has in the kernel itself.
    pub local_bytes: u32,
    /// Bytes of constant memory in its module.
    pub const_bytes: u32,
    /// 32-bit registers of a thread, an estimate: those of the PTX that live at the same time, 16
    /// to 255, and no more than the kernel's header allows.
    pub registers: u32,
    /// `.maxntid`, if given.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`, if given.
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`, if given.
    pub min_blocks: Option<u32>,
    /// `.reqnctapercluster`, if given.
    pub required_cluster: Option<[u32; 3]>,
    /// `.explicitcluster`: it is launched with clusters of a given size only.
    pub explicit_cluster: bool,
    /// `.blocksareclusters`: its grids count clusters.
    pub blocks_are_clusters: bool,
    /// `.maxclusterrank`, if given: most blocks of a cluster.
    pub max_cluster_rank: Option<u32>,
    /// 1-based line of its header.
    pub line: u32,
}

/// A kernel parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamLayout {
    /// Byte offset in the parameter block.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
    /// Bytes.
    pub align: u32,
}

/// A `.global` or `.const` variable of a module.
#[derive(Debug, Clone)]
pub struct ModuleVariable {
    /// Name.
    pub name: Arc<str>,
    /// Bytes.
    pub size: u64,
    /// Bytes.
    pub align: u64,
    /// `.const` rather than `.global`.
    pub constant: bool,
    /// `.attribute(.managed)`.
    pub managed: bool,
    /// Visible to `cuModuleGetGlobal`: everything but `.extern`.
    pub external: bool,
    /// Initial bytes; the rest, or all if empty, is zero.
    pub init: Vec<u8>,
    /// Addresses to add to the initial bytes.
    pub relocations: Vec<Relocation>,
}

/// What a reference of a module refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceKind {
    /// `.texref`.
    Texture,
    /// `.samplerref`.
    Sampler,
    /// `.surfref`.
    Surface,
}

/// A `.texref`, `.samplerref` or `.surfref` variable of a module.
#[derive(Debug, Clone)]
pub struct ModuleReference {
    /// Name.
    pub name: Arc<str>,
    /// What it refers to.
    pub kind: ReferenceKind,
}

/// `bytes[offset..offset+size] = address of symbol + addend`.
#[derive(Debug, Clone)]
pub struct Relocation {
    /// Bytes.
    pub offset: u64,
    /// 4 or 8.
    pub size: u32,
    /// Variable or function.
    pub symbol: Arc<str>,
    /// Bytes.
    pub addend: i64,
}
