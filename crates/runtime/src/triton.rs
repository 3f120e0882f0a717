//! Kernels compiled by Triton, loaded and launched without Python.
//!
//! Triton's cache has a folder for each kernel: its machine code, its PTX, and a JSON object with
//! its launch parameters. That object gives the threads, the shared memory, the clusters and the
//! scratch memory; the code gives the sizes of the parameters. Triton omits parameters that were
//! constant when it compiled, and adds one for each kind of scratch memory that it knows, whether
//! the kernel needs it or not.
//!
//! Invariant: a launched kernel was compiled for the device, has the shared memory that it
//! requires, and gets as many arguments as it has parameters, each of the right size.
//!
//! Elsewhere: launching (`fercuda_cuda::Launch`), the order of a session's work (`session`).

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use fercuda_cuda::{Context, DeviceBuffer, Function, Image, KernelArg, Launch, Module, Stream};
use fercuda_tensor::{Dtype, Layout};
use serde_json::{Map, Value as Json};

use crate::error::Error;
use crate::jobs::Job;
use crate::session::{BufferId, LaunchArgument, Regime, Session};

/// Threads of a warp.
const WARP: u32 = 32;
/// Alignment of memory from the pool.
const SCRATCH_ALIGN: u64 = 256;

/// Error of loading or launching a Triton kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TritonError {
    /// A file cannot be read.
    #[error("{}: {reason}\ntry: the .json in a folder of Triton's cache (TRITON_CACHE_DIR or ~/.triton/cache), with its .cubin beside it", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The metadata are not a JSON object.
    #[error("the metadata are not a JSON object: {reason}")]
    Json {
        /// The parser's error.
        reason: String,
    },
    /// The metadata lack a field.
    #[error(
        "the metadata have no {field:?}\ntry: the file NAME.json, not __grp__NAME.json; Triton 3.0 and later write it"
    )]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field has an invalid value.
    #[error("the metadata's {field:?} is {value}; expected {wants}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is expected.
        wants: &'static str,
    },
    /// The kernel needs a feature that is not supported here.
    #[error("{kernel} needs {what}\ntry: {advice}")]
    Unsupported {
        /// Its name.
        kernel: String,
        /// The feature.
        what: &'static str,
        /// What to try.
        advice: &'static str,
    },
    /// The kernel was compiled for other devices.
    #[error(
        "{kernel} was compiled for sm_{compiled}, and {device} is sm_{own}\ntry: compile it there, or load its PTX, which later devices support"
    )]
    Arch {
        /// Its name.
        kernel: String,
        /// The architecture that it was compiled for.
        compiled: u32,
        /// The device.
        device: String,
        /// The device's architecture.
        own: u32,
    },
    /// The kernel needs more shared memory than a block can have.
    #[error(
        "{kernel} needs {asked} bytes of shared memory, but a block of {device} can have {limit}\ntry: fewer stages or smaller tiles when it is compiled"
    )]
    Shared {
        /// Its name.
        kernel: String,
        /// Bytes it needs.
        asked: u64,
        /// The device.
        device: String,
        /// The device's limit.
        limit: u64,
    },
    /// The number of arguments differs from that of the parameters.
    #[error(
        "{kernel} takes {wanted} arguments, but {given} were given\ntry: those of its signature that were not constant when it was compiled; scratch memory is added automatically"
    )]
    Arguments {
        /// Its name.
        kernel: String,
        /// Its parameters, without scratch memory.
        wanted: usize,
        /// The number of arguments.
        given: usize,
    },
    /// A grid beyond the limits.
    #[error("{kernel}: a grid of {grid:?} for clusters of {cluster:?} is too large")]
    Grid {
        /// Its name.
        kernel: String,
        /// The grid.
        grid: [u32; 3],
        /// Its clusters.
        cluster: [u32; 3],
    },
    /// The driver, or the layer above it, refused.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
    /// The session refused.
    #[error(transparent)]
    Session(#[from] Error),
}

type Result<T> = std::result::Result<T, TritonError>;

/// Launch parameters of a kernel, from Triton's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TritonMetadata {
    /// The kernel's name in its code.
    pub name: String,
    /// Architecture: 90 for `sm_90`.
    pub arch: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Blocks of a cluster, along each axis.
    pub cluster: [u32; 3],
    /// Whether the launch is cooperative: blocks wait for each other.
    pub cooperative: bool,
    /// Whether the kernel may start before the previous one has ended. It does so only without
    /// scratch memory, which may be the previous kernel's until then.
    pub overlaps_previous: bool,
    /// Scratch memory of a block, in bytes; `None` if the kernel has no parameter for it.
    pub scratch_bytes: Option<u64>,
    /// Whether it has a parameter for the profiler's memory.
    pub has_profile: bool,
}

/// Reads fields of a JSON object; each error names the field.
struct MetadataFields<'a>(&'a Map<String, Json>);

impl MetadataFields<'_> {
    fn get(&self, field: &'static str) -> Option<&Json> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn wrong(value: &Json, field: &'static str, wants: &'static str) -> TritonError {
        let value = value.to_string();
        let value = value.chars().take(60).collect();
        TritonError::Field {
            field,
            value,
            wants,
        }
    }

    fn number(&self, field: &'static str) -> Result<Option<u64>> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let wants = "a whole number that is not negative";
        let number = value.as_u64();
        number
            .map(Some)
            .ok_or_else(|| Self::wrong(value, field, wants))
    }

    fn small(&self, field: &'static str, most: u32, wants: &'static str) -> Result<Option<u32>> {
        let Some(number) = self.number(field)? else {
            return Ok(None);
        };
        match u32::try_from(number) {
            Ok(number) if number <= most => Ok(Some(number)),
            _ => Err(Self::wrong(&number.into(), field, wants)),
        }
    }

    fn flag(&self, field: &'static str) -> Result<bool> {
        match self.get(field) {
            None => Ok(false),
            Some(Json::Bool(value)) => Ok(*value),
            Some(value) => Err(Self::wrong(value, field, "true or false")),
        }
    }

    fn text(&self, field: &'static str) -> Result<&str> {
        let value = self.get(field).ok_or(TritonError::Missing { field })?;
        value
            .as_str()
            .ok_or_else(|| Self::wrong(value, field, "a text"))
    }
}

fn unsupported(kernel: &str, what: &'static str, advice: &'static str) -> TritonError {
    TritonError::Unsupported {
        kernel: kernel.to_owned(),
        what,
        advice,
    }
}

impl TritonMetadata {
    /// Parses the object in `NAME.json`.
    ///
    /// # Errors
    /// [`TritonError::Json`], [`TritonError::Missing`], [`TritonError::Field`];
    /// [`TritonError::Unsupported`] for tensor descriptors, the profiler and devices of other
    /// vendors.
    pub fn parse(text: &str) -> Result<Self> {
        let json: Json = serde_json::from_str(text).map_err(|error| TritonError::Json {
            reason: error.to_string(),
        })?;
        let object = json.as_object().ok_or_else(|| TritonError::Json {
            reason: "it is another value".to_owned(),
        })?;
        let fields = MetadataFields(object);
        let missing = |field| move || TritonError::Missing { field };
        let name = fields.text("name")?.to_owned();
        let target = fields.get("target").ok_or_else(missing("target"))?;
        let of_target = target
            .as_object()
            .map(MetadataFields)
            .ok_or_else(|| MetadataFields::wrong(target, "target", "an object"))?;
        if of_target.text("backend")? != "cuda" {
            let advice = "compile it for cuda";
            return Err(unsupported(&name, "a device that is not NVIDIA's", advice));
        }
        let arch = of_target.small("arch", 999, "a compute capability, as 90")?;
        let arch = arch.ok_or_else(missing("arch"))?;
        let warps = fields.small("num_warps", 32, "1 to 32")?;
        let warps = warps.ok_or_else(missing("num_warps"))?;
        if warps == 0 {
            return Err(MetadataFields::wrong(&0.into(), "num_warps", "1 to 32"));
        }
        let shared = fields.small("shared", u32::MAX, "a number of bytes")?;
        let is_empty = |value: &Json| value.as_array().is_some_and(Vec::is_empty);
        if fields
            .get("tensordesc_meta")
            .is_some_and(|list| !is_empty(list))
        {
            let advice = "pointers instead of tensor descriptors in its source";
            return Err(unsupported(
                &name,
                "tensor descriptors, which its launcher makes",
                advice,
            ));
        }
        if fields.number("profile_scratch_size")?.unwrap_or(0) > 0 {
            let advice = "compile it without the profiler's instrumentation";
            return Err(unsupported(&name, "the profiler's memory", advice));
        }
        let align = fields.number("global_scratch_align")?.unwrap_or(1);
        if align > SCRATCH_ALIGN {
            return Err(MetadataFields::wrong(
                &align.into(),
                "global_scratch_align",
                "256 at most",
            ));
        }
        Ok(Self {
            arch,
            warps,
            shared_bytes: shared.ok_or_else(missing("shared"))?,
            cluster: cluster(&fields)?,
            cooperative: fields.flag("launch_cooperative_grid")?,
            overlaps_previous: fields.flag("launch_pdl")?,
            scratch_bytes: fields.number("global_scratch_size")?,
            has_profile: fields.get("profile_scratch_size").is_some(),
            name,
        })
    }

    /// The launch of a grid of this many blocks.
    fn laid(&self, blocks: [u32; 3]) -> Launch {
        let [x, y, z] = blocks;
        let mut launch = Launch::new((x, y, z), WARP * self.warps);
        launch = launch.shared_bytes(self.shared_bytes);
        if self.cluster != [1, 1, 1] {
            let [x, y, z] = self.cluster;
            launch = launch.cluster((x, y, z));
        }
        if self.cooperative {
            launch = launch.cooperative();
        }
        // Scratch memory is freed behind each launch, and the next launch in the stream may get the
        // same memory: it must start after that one has ended.
        if self.overlaps_previous && self.scratch_bytes.unwrap_or(0) == 0 {
            launch = launch.overlaps_previous();
        }
        launch
    }

    /// Number of Triton's own parameters, which follow those of the signature.
    fn hidden(&self) -> usize {
        usize::from(self.scratch_bytes.is_some()) + usize::from(self.has_profile)
    }
}

/// Reads `cluster_dims`, or without it `num_ctas` blocks along x.
fn cluster(fields: &MetadataFields<'_>) -> Result<[u32; 3]> {
    const MOST: u32 = 16;
    let wants = "1 to 16";
    let blocks = fields.small("num_ctas", MOST, wants)?.unwrap_or(1);
    let Some(value) = fields.get("cluster_dims") else {
        return Ok([blocks.max(1), 1, 1]);
    };
    let wrong = || MetadataFields::wrong(value, "cluster_dims", "three numbers from 1 to 16");
    let list: Option<Vec<u32>> = value.as_array().and_then(|list| {
        let numbers = list
            .iter()
            .map(|number| u32::try_from(number.as_u64()?).ok());
        numbers.collect()
    });
    let cluster: [u32; 3] = list
        .and_then(|list| list.try_into().ok())
        .ok_or_else(wrong)?;
    match cluster.iter().all(|blocks| (1..=MOST).contains(blocks)) {
        // Later versions keep the field, and give the number in `num_ctas`.
        true if cluster == [1, 1, 1] => Ok([blocks.max(1), 1, 1]),
        true => Ok(cluster),
        false => Err(wrong()),
    }
}

/// A loaded Triton kernel.
#[derive(Clone, Debug)]
pub struct TritonKernel {
    metadata: TritonMetadata,
    function: Function,
}

impl TritonKernel {
    /// Loads the kernel with the metadata in the file `NAME.json`, and its code from `NAME.cubin`
    /// beside it; on the software device, which has no machine code, from `NAME.ptx`.
    ///
    /// # Errors
    /// As for [`TritonMetadata::parse`] and [`TritonKernel::load`]; [`TritonError::File`].
    ///
    /// # Safety
    /// The code is unmodified output of Triton's compiler.
    #[expect(unsafe_code, reason = "machine code cannot be checked")]
    pub unsafe fn open(context: &Context, json: &Path) -> Result<Self> {
        // SAFETY: the caller's promise.
        let (metadata, image) = unsafe { read(context, json) }?;
        Self::load(context, metadata, &image)
    }

    /// As [`TritonKernel::open`], with the session as tenant of the driver's memory.
    ///
    /// # Errors
    /// As for [`TritonKernel::open`]; [`TritonError::Session`].
    ///
    /// # Safety
    /// As for [`TritonKernel::open`].
    #[expect(unsafe_code, reason = "machine code cannot be checked")]
    pub unsafe fn open_in(session: &Session, json: &Path) -> Result<Self> {
        // SAFETY: the caller's promise.
        let (metadata, image) = unsafe { read(session.stream().context(), json) }?;
        Self::load_in(session, metadata, &image)
    }

    /// Loads a kernel from its code.
    ///
    /// # Errors
    /// [`TritonError::Arch`], [`TritonError::Shared`]; [`TritonError::Cuda`] if the driver
    /// refuses the code or it has no such kernel.
    pub fn load(context: &Context, metadata: TritonMetadata, image: &Image<'_>) -> Result<Self> {
        let load = || Ok(Module::load(context, image)?);
        Self::made(context, metadata, image, load)
    }

    /// As [`TritonKernel::load`], with the session as tenant of the driver's memory.
    ///
    /// # Errors
    /// As for [`TritonKernel::load`]; [`TritonError::Session`].
    pub fn load_in(session: &Session, metadata: TritonMetadata, image: &Image<'_>) -> Result<Self> {
        let load = || Ok(session.load(image)?);
        Self::made(session.stream().context(), metadata, image, load)
    }

    fn made(
        context: &Context,
        metadata: TritonMetadata,
        image: &Image<'_>,
        load: impl FnOnce() -> Result<Module>,
    ) -> Result<Self> {
        let device = context.device();
        let (major, minor) = device.compute_capability()?;
        let own = 10 * major + minor;
        // Machine code runs on one generation; PTX on all later ones.
        let fits = match image.is_ptx() {
            true => metadata.arch <= own,
            false => metadata.arch / 10 == major && metadata.arch <= own,
        };
        if !fits {
            return Err(TritonError::Arch {
                kernel: metadata.name,
                compiled: metadata.arch,
                device: device.to_string(),
                own,
            });
        }
        let function = load()?.function(&metadata.name)?;
        let limit = u64::from(device.max_shared_bytes()?);
        let asked = u64::from(metadata.shared_bytes) + u64::from(function.static_shared_bytes());
        if asked > limit {
            return Err(TritonError::Shared {
                kernel: metadata.name,
                asked,
                device: device.to_string(),
                limit,
            });
        }
        Ok(Self { metadata, function })
    }

    /// The kernel's metadata.
    pub fn metadata(&self) -> &TritonMetadata {
        &self.metadata
    }

    /// The kernel's function.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Sizes of the arguments in bytes, without Triton's own; `None` if the driver is too old to
    /// report them.
    pub fn argument_bytes(&self) -> Option<&[usize]> {
        let all = self.function.parameter_bytes()?;
        all.get(..all.len().checked_sub(self.metadata.hidden())?)
    }

    /// Queues the kernel in `stream`: `grid` programs, in the units of its source. Scratch memory
    /// is allocated from the stream's pool.
    ///
    /// # Errors
    /// [`TritonError::Arguments`], [`TritonError::Grid`]; [`TritonError::Cuda`], also for arguments
    /// of other sizes. Nothing is queued then.
    ///
    /// # Safety
    /// As for [`Launch::run`]: with these arguments the kernel accesses only memory that it is
    /// given, and the arguments match the meaning of its parameters.
    #[expect(unsafe_code, reason = "only the caller knows what the kernel accesses")]
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        arguments: &[KernelArg<'_>],
    ) -> Result<()> {
        self.check_count(arguments.len())?;
        let Some(blocks) = self.blocks(grid)? else {
            return Ok(());
        };
        let scratch = match self.scratch_bytes(grid, blocks)? {
            0 => None,
            bytes => Some(DeviceBuffer::<u8>::alloc_ordered(stream, bytes as usize)?),
        };
        let mut all = arguments.to_vec();
        if self.metadata.scratch_bytes.is_some() {
            all.push(match &scratch {
                Some(scratch) => KernelArg::buffer(scratch),
                None => KernelArg::number(0u64),
            });
        }
        if self.metadata.has_profile {
            all.push(KernelArg::number(0u64));
        }
        // SAFETY: the caller's promise for its arguments; scratch memory has the size that the
        // metadata require for each block, and the other hidden arguments are null, as nothing is
        // needed.
        unsafe {
            self.metadata
                .laid(blocks)
                .run(&self.function, stream, all.as_slice())?
        };
        Ok(())
    }

    /// Launches the kernel behind a session's work, with its buffers. Scratch memory counts as the
    /// session's, within its limit, and is freed behind the kernel.
    ///
    /// # Errors
    /// As for [`TritonKernel::launch`]; [`TritonError::Session`], also for arguments of other
    /// sizes. Nothing is queued then.
    ///
    /// # Safety
    /// As for [`TritonKernel::launch`].
    #[expect(unsafe_code, reason = "only the caller knows what the kernel accesses")]
    pub unsafe fn launch_in(
        &self,
        session: &Session,
        grid: [u32; 3],
        arguments: &[LaunchArgument],
    ) -> Result<()> {
        self.check_count(arguments.len())?;
        let Some(blocks) = self.blocks(grid)? else {
            return Ok(());
        };
        let (all, _scratch) = self.all_in(session, grid, blocks, arguments)?;
        // SAFETY: as in `launch`.
        Ok(unsafe { session.launch(&self.function, self.metadata.laid(blocks), &all) }?)
    }

    /// As [`TritonKernel::launch_in`], as a job, which is done when the kernel is.
    ///
    /// # Errors
    /// As for [`TritonKernel::launch_in`]; the driver's refusal and the kernel's failure are
    /// reported by the job.
    ///
    /// # Safety
    /// As for [`TritonKernel::launch`].
    #[expect(unsafe_code, reason = "only the caller knows what the kernel accesses")]
    pub unsafe fn launch_in_async(
        &self,
        session: &Session,
        grid: [u32; 3],
        arguments: &[LaunchArgument],
    ) -> Result<Job<()>> {
        self.check_count(arguments.len())?;
        let Some(blocks) = self.blocks(grid)? else {
            return Ok(session.submit(|_| Ok(()))?);
        };
        let (all, _scratch) = self.all_in(session, grid, blocks, arguments)?;
        // SAFETY: as in `launch`.
        Ok(unsafe { session.launch_async(&self.function, self.metadata.laid(blocks), &all) }?)
    }

    fn check_count(&self, given: usize) -> Result<()> {
        match self.argument_bytes() {
            Some(wanted) if wanted.len() != given => Err(TritonError::Arguments {
                kernel: self.metadata.name.clone(),
                wanted: wanted.len(),
                given,
            }),
            _ => Ok(()),
        }
    }

    /// Blocks along each axis: programs times the blocks of a cluster; `None` for an empty grid.
    fn blocks(&self, grid: [u32; 3]) -> Result<Option<[u32; 3]>> {
        if grid.contains(&0) {
            return Ok(None);
        }
        let mut blocks = grid;
        for (along, of_cluster) in blocks.iter_mut().zip(self.metadata.cluster) {
            let all = along.checked_mul(of_cluster);
            *along = all.ok_or_else(|| self.too_large(grid))?;
        }
        Ok(Some(blocks))
    }

    fn too_large(&self, grid: [u32; 3]) -> TritonError {
        TritonError::Grid {
            kernel: self.metadata.name.clone(),
            grid,
            cluster: self.metadata.cluster,
        }
    }

    /// Scratch memory of all blocks.
    fn scratch_bytes(&self, grid: [u32; 3], blocks: [u32; 3]) -> Result<u64> {
        let of_block = self.metadata.scratch_bytes.unwrap_or(0);
        let all = blocks.iter().try_fold(of_block, |bytes, blocks| {
            bytes.checked_mul(u64::from(*blocks))
        });
        // An address has 64 bits, a length 63.
        let all = all.filter(|bytes| i64::try_from(*bytes).is_ok());
        all.ok_or_else(|| self.too_large(grid))
    }

    /// The session's arguments followed by Triton's own, with the scratch memory of these.
    fn all_in<'s>(
        &self,
        session: &'s Session,
        grid: [u32; 3],
        blocks: [u32; 3],
        arguments: &[LaunchArgument],
    ) -> Result<(Vec<LaunchArgument>, Option<ScratchBuffer<'s>>)> {
        let mut all = arguments.to_vec();
        let mut taken = None;
        if self.metadata.scratch_bytes.is_some() {
            let bytes = self.scratch_bytes(grid, blocks)?;
            if bytes == 0 {
                all.push(0u64.into());
            } else {
                let layout = Layout::contiguous(Dtype::U8, &[bytes]).map_err(Error::from)?;
                let id = session.alloc(layout, Regime::Pool)?;
                all.push(id.into());
                taken = Some(ScratchBuffer { session, id });
            }
        }
        if self.metadata.has_profile {
            all.push(0u64.into());
        }
        Ok((all, taken))
    }
}

/// A buffer that is freed when dropped, behind the work queued with it.
struct ScratchBuffer<'s> {
    session: &'s Session,
    id: BufferId,
}

impl Drop for ScratchBuffer<'_> {
    fn drop(&mut self) {
        // The session, and with it the buffer, may be gone.
        drop(self.session.free(self.id));
    }
}

/// A larger file is not read.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Reads a regular file: a device may have no end, and a pipe no writer.
fn contents(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= MAX_FILE_BYTES {
        true => Ok(bytes),
        false => Err(io::Error::other(format!(
            "it has more than {MAX_FILE_BYTES} bytes"
        ))),
    }
}

/// Reads the metadata, and the code for the context's device.
///
/// # Safety
/// As for [`TritonKernel::open`].
#[expect(unsafe_code, reason = "machine code cannot be checked")]
unsafe fn read(context: &Context, json: &Path) -> Result<(TritonMetadata, Image<'static>)> {
    let read = |path: &Path| {
        contents(path).map_err(|error| TritonError::File {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    };
    let text = String::from_utf8_lossy(&read(json)?).into_owned();
    let metadata = TritonMetadata::parse(&text)?;
    let kind = match context.device().cuda().is_software() {
        true => "ptx",
        false => "cubin",
    };
    let code = read(&json.with_extension(kind))?;
    // SAFETY: the caller's promise.
    let image = unsafe { Image::binary(code) }.map_err(fercuda_cuda::Error::Image)?;
    Ok((metadata, image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_read() {
        // The test would not end if the device were read.
        for path in ["/dev/zero", "/dev/null", "/proc/self"] {
            let error = contents(Path::new(path)).unwrap_err();
            assert_eq!(error.to_string(), "it is not a regular file");
        }
    }

    #[test]
    fn kernel_with_scratch_memory_waits_for_the_previous_one() {
        let parsed = |scratch: &str| {
            let text = format!(
                r#"{{"name": "k", "target": {{"backend": "cuda", "arch": 90}}, "num_warps": 4,
                    "shared": 16, "launch_pdl": true, "num_ctas": 2 {scratch}}}"#
            );
            TritonMetadata::parse(&text).unwrap()
        };
        let plain = Launch::new((6, 1, 1), 128)
            .shared_bytes(16)
            .cluster((2, 1, 1));
        for none in ["", r#", "global_scratch_size": 0"#] {
            assert_eq!(parsed(none).laid([6, 1, 1]), plain.overlaps_previous());
        }
        let some = parsed(r#", "global_scratch_size": 128"#);
        assert!(some.overlaps_previous);
        assert_eq!(some.laid([6, 1, 1]), plain);
    }
}
