//! Kernels that Triton has compiled, without Python.
//!
//! Triton's cache has a folder for each kernel: its machine code, its PTX, and a JSON object
//! that says how it is launched. From that object come the threads, the shared memory, the
//! clusters and the scratch memory; from the code come the sizes of the parameters. Triton
//! leaves out parameters that were constant when it compiled, and adds one for each kind of
//! scratch memory that it knows, whether the kernel needs it or not.
//!
//! Invariant: what is launched was compiled for such a device, has the shared memory that it
//! asks for, and gets as many arguments as it has parameters, each of its size.
//!
//! Elsewhere: launching (`fercuda_cuda::Launch`), the order of a session's work (`session`).

use std::path::{Path, PathBuf};

use fercuda_cuda::{Context, DeviceBuffer, Function, Image, KernelArg, Launch, Module, Stream};
use fercuda_tensor::{Dtype, Layout};
use serde_json::{Map, Value as Json};

use crate::error::Error;
use crate::jobs::Job;
use crate::session::{Argument, BufferId, Regime, Session};

/// Threads of a warp.
const WARP: u32 = 32;
/// What memory from the pool is aligned to.
const SCRATCH_ALIGN: u64 = 256;

/// Why a kernel of Triton's is not loaded or not launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TritonError {
    /// A file cannot be read.
    #[error("{}: {reason}\ntry: the .json in a folder of Triton's cache (TRITON_CACHE_DIR or ~/.triton/cache), with its .cubin beside it", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The metadata are no JSON object.
    #[error("the metadata are no JSON object: {reason}")]
    Json {
        /// Where it stops to be one.
        reason: String,
    },
    /// The metadata lack something.
    #[error(
        "the metadata have no {field:?}\ntry: the file NAME.json, not __grp__NAME.json; Triton 3.0 and later write it"
    )]
    Missing {
        /// What they lack.
        field: &'static str,
    },
    /// Something in them is not what it should be.
    #[error("the metadata's {field:?} is {value}, which should be {wants}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it should be.
        wants: &'static str,
    },
    /// The kernel needs something that is not given here.
    #[error("{kernel} needs {what}\ntry: {advice}")]
    Unsupported {
        /// Its name.
        kernel: String,
        /// What it needs.
        what: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// It was compiled for other devices.
    #[error(
        "{kernel} was compiled for sm_{compiled}, and {device} is sm_{own}\ntry: compile it there, or load its PTX, which later devices read"
    )]
    Arch {
        /// Its name.
        kernel: String,
        /// What it was compiled for.
        compiled: u32,
        /// The device.
        device: String,
        /// What that is.
        own: u32,
    },
    /// The device has not so much shared memory for a block.
    #[error(
        "{kernel} asks for {asked} bytes of shared memory, and a block of {device} may have {limit}\ntry: fewer stages or smaller tiles when it is compiled"
    )]
    Shared {
        /// Its name.
        kernel: String,
        /// What it asks for.
        asked: u64,
        /// The device.
        device: String,
        /// What there is.
        limit: u64,
    },
    /// Another number of arguments than it has parameters.
    #[error(
        "{kernel} takes {wanted} arguments, and {given} were given\ntry: those of its signature that were no constants when it was compiled; its scratch memory comes by itself"
    )]
    Arguments {
        /// Its name.
        kernel: String,
        /// Without scratch memory.
        wanted: usize,
        /// As many as there were.
        given: usize,
    },
    /// More blocks than a grid has.
    #[error("{kernel}: a grid of {grid:?} for clusters of {cluster:?} is larger than there can be")]
    Grid {
        /// Its name.
        kernel: String,
        /// As given.
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

/// How a kernel is launched, as Triton wrote it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TritonMetadata {
    /// The kernel's name in its code.
    pub name: String,
    /// What it was compiled for: 90 for `sm_90`.
    pub arch: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Blocks of a cluster, along each axis.
    pub cluster: [u32; 3],
    /// Whether blocks wait for each other.
    pub cooperative: bool,
    /// Whether it may begin before the kernel ahead of it has ended. It does so only if it has
    /// no scratch memory, which may be that kernel's until then.
    pub overlaps_previous: bool,
    /// Scratch memory of a block, in bytes; none if the kernel has no parameter for it.
    pub scratch_bytes: Option<u64>,
    /// Whether it has a parameter for the profiler's memory.
    pub has_profile: bool,
}

/// Reads fields of an object, each with an error that names it.
struct Fields<'a>(&'a Map<String, Json>);

impl Fields<'_> {
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
    /// Reads the object in `NAME.json`.
    ///
    /// # Errors
    /// [`TritonError::Json`], [`TritonError::Missing`], [`TritonError::Field`];
    /// [`TritonError::Unsupported`] of tensor descriptors, the profiler and other makers'
    /// devices.
    pub fn parse(text: &str) -> Result<Self> {
        let json: Json = serde_json::from_str(text).map_err(|error| TritonError::Json {
            reason: error.to_string(),
        })?;
        let object = json.as_object().ok_or_else(|| TritonError::Json {
            reason: "it is another value".to_owned(),
        })?;
        let fields = Fields(object);
        let missing = |field| move || TritonError::Missing { field };
        let name = fields.text("name")?.to_owned();
        let target = fields.get("target").ok_or_else(missing("target"))?;
        let of_target = target
            .as_object()
            .map(Fields)
            .ok_or_else(|| Fields::wrong(target, "target", "an object"))?;
        if of_target.text("backend")? != "cuda" {
            let advice = "compile it for cuda";
            return Err(unsupported(&name, "a device that is not NVIDIA's", advice));
        }
        let arch = of_target.small("arch", 999, "a compute capability, as 90")?;
        let arch = arch.ok_or_else(missing("arch"))?;
        let warps = fields.small("num_warps", 32, "1 to 32")?;
        let warps = warps.ok_or_else(missing("num_warps"))?;
        if warps == 0 {
            return Err(Fields::wrong(&0.into(), "num_warps", "1 to 32"));
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
            return Err(Fields::wrong(
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

    /// The launch of so many blocks.
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
        // Scratch memory is given back behind each launch, and the next in the stream may get
        // the same: in order, if it begins when that one has ended.
        if self.overlaps_previous && self.scratch_bytes.unwrap_or(0) == 0 {
            launch = launch.overlaps_previous();
        }
        launch
    }

    /// Parameters that are Triton's own, behind those of the signature.
    fn hidden(&self) -> usize {
        usize::from(self.scratch_bytes.is_some()) + usize::from(self.has_profile)
    }
}

/// `cluster_dims` says it; where there is none, `num_ctas` blocks along x.
fn cluster(fields: &Fields<'_>) -> Result<[u32; 3]> {
    const MOST: u32 = 16;
    let wants = "1 to 16";
    let blocks = fields.small("num_ctas", MOST, wants)?.unwrap_or(1);
    let Some(value) = fields.get("cluster_dims") else {
        return Ok([blocks.max(1), 1, 1]);
    };
    let wrong = || Fields::wrong(value, "cluster_dims", "three numbers from 1 to 16");
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
        // Later versions keep the field, and say the number in `num_ctas`.
        true if cluster == [1, 1, 1] => Ok([blocks.max(1), 1, 1]),
        true => Ok(cluster),
        false => Err(wrong()),
    }
}

/// A kernel of Triton's, loaded.
#[derive(Clone, Debug)]
pub struct TritonKernel {
    metadata: TritonMetadata,
    function: Function,
}

impl TritonKernel {
    /// Loads the kernel whose metadata are in the file `NAME.json`, with its code from
    /// `NAME.cubin` beside it; on the software device, which has no machine code, from
    /// `NAME.ptx`.
    ///
    /// # Errors
    /// As for [`TritonMetadata::parse`] and [`TritonKernel::load`]; [`TritonError::File`].
    ///
    /// # Safety
    /// The code is as Triton's compiler made it, and nobody has changed it since.
    #[expect(unsafe_code, reason = "machine code is believed")]
    pub unsafe fn open(context: &Context, json: &Path) -> Result<Self> {
        // SAFETY: the caller's promise.
        let (metadata, image) = unsafe { read(context, json) }?;
        Self::load(context, metadata, &image)
    }

    /// The same for a session, which is the tenant of what the driver takes for it.
    ///
    /// # Errors
    /// As for [`TritonKernel::open`]; [`TritonError::Session`].
    ///
    /// # Safety
    /// As for [`TritonKernel::open`].
    #[expect(unsafe_code, reason = "machine code is believed")]
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

    /// The same for a session, which is the tenant of what the driver takes for it.
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
        // Machine code is for one generation; PTX for all later ones.
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

    /// What Triton says of it.
    pub fn metadata(&self) -> &TritonMetadata {
        &self.metadata
    }

    /// The kernel.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Sizes of its arguments in bytes, without Triton's own; none if the driver is too old
    /// to say.
    pub fn argument_bytes(&self) -> Option<&[usize]> {
        let all = self.function.parameter_bytes()?;
        all.get(..all.len().checked_sub(self.metadata.hidden())?)
    }

    /// Queues it in `stream`: `grid` programs, as its author counts them. Scratch memory is
    /// taken from the stream's pool.
    ///
    /// # Errors
    /// [`TritonError::Arguments`], [`TritonError::Grid`]; [`TritonError::Cuda`], also of
    /// arguments of other sizes. Nothing is queued then.
    ///
    /// # Safety
    /// As for [`Launch::run`]: with these arguments the kernel touches only memory that it
    /// is given, and its parameters mean what the arguments are.
    #[expect(unsafe_code, reason = "what the kernel touches only the caller knows")]
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
        // SAFETY: the caller's promise for its arguments; scratch memory has what the
        // metadata say for each block, and the rest are null where nothing is needed.
        unsafe {
            self.metadata
                .laid(blocks)
                .run(&self.function, stream, all.as_slice())?
        };
        Ok(())
    }

    /// Launches it behind a session's work, with its buffers. Scratch memory is the
    /// session's, within its limit, and given back behind the kernel.
    ///
    /// # Errors
    /// As for [`TritonKernel::launch`]; [`TritonError::Session`], also of arguments of
    /// other sizes. Nothing is queued then.
    ///
    /// # Safety
    /// As for [`TritonKernel::launch`].
    #[expect(unsafe_code, reason = "what the kernel touches only the caller knows")]
    pub unsafe fn launch_in(
        &self,
        session: &Session,
        grid: [u32; 3],
        arguments: &[Argument],
    ) -> Result<()> {
        self.check_count(arguments.len())?;
        let Some(blocks) = self.blocks(grid)? else {
            return Ok(());
        };
        let (all, _scratch) = self.all_in(session, grid, blocks, arguments)?;
        // SAFETY: as in `launch`.
        Ok(unsafe { session.launch(&self.function, self.metadata.laid(blocks), &all) }?)
    }

    /// The same as a job, which is done when the kernel is.
    ///
    /// # Errors
    /// As for [`TritonKernel::launch_in`]; what the driver refuses, and what the kernel
    /// fails with, is the job's.
    ///
    /// # Safety
    /// As for [`TritonKernel::launch`].
    #[expect(unsafe_code, reason = "what the kernel touches only the caller knows")]
    pub unsafe fn launch_in_async(
        &self,
        session: &Session,
        grid: [u32; 3],
        arguments: &[Argument],
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

    /// Blocks along each axis, which are programs times those of a cluster; none of a grid
    /// that has none.
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
        // An address is of 64 bits, a length of 63.
        let all = all.filter(|bytes| i64::try_from(*bytes).is_ok());
        all.ok_or_else(|| self.too_large(grid))
    }

    /// The session's arguments with Triton's own behind them, and the memory of those.
    fn all_in<'s>(
        &self,
        session: &'s Session,
        grid: [u32; 3],
        blocks: [u32; 3],
        arguments: &[Argument],
    ) -> Result<(Vec<Argument>, Option<Taken<'s>>)> {
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
                taken = Some(Taken { session, id });
            }
        }
        if self.metadata.has_profile {
            all.push(0u64.into());
        }
        Ok((all, taken))
    }
}

/// A buffer that is freed, behind what was queued with it.
struct Taken<'s> {
    session: &'s Session,
    id: BufferId,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // The session may have ended meanwhile, and it with it.
        drop(self.session.free(self.id));
    }
}

/// Metadata, and the code that the context's device runs.
///
/// # Safety
/// As for [`TritonKernel::open`].
#[expect(unsafe_code, reason = "machine code is believed")]
unsafe fn read(context: &Context, json: &Path) -> Result<(TritonMetadata, Image<'static>)> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| TritonError::File {
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
    fn one_with_scratch_memory_begins_when_the_one_before_has_ended() {
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
