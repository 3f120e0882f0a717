//! Launches and small programs that call the driver's table directly, as a C program would.
//!
//! The safe layer above the table prevents most of what the planted bugs do, so they are written
//! below it. Nothing is freed that a program does not free: a process runs one of them and ends.
//!
//! Operations of a program, one per line (`STREAM` is a name defined by `stream`, or `default`):
//! ```text
//! stream S              blocking S           alloc X BYTES          alloc_async S X BYTES
//! free X                free_async S X       pinned H BYTES         launch S KERNEL ARG...
//! copy_in S X           copy_out S X         copy S TO FROM         memset S X
//! copy_in S X from H    copy_out S X to H    record S E             wait S E
//! sync                  sync S               sync_event E           pause
//! capture S             end_capture S G      launch_graph S G    managed X BYTES
//! pitched X WIDTH HEIGHT                     shape GRID BLOCK    destroy S
//! fill X OFFSET BYTES                        fill_words X OFFSET COUNT
//! fill_rows X PITCH WIDTH HEIGHT             copy_rows TO PITCH FROM PITCH WIDTH HEIGHT
//! move TO OFFSET FROM OFFSET BYTES           upload X OFFSET BYTES    download X OFFSET BYTES
//! ```
//! `shape` is that of the launches after it. Those of the last three lines wait, as calls without a
//! stream do. `X+N` is the address N bytes behind X, in arguments.
//! Arguments of `launch` are buffers or whole numbers (`i32`); kernels run as one block of 64
//! threads unless `shape` says otherwise. `pause` gives the device time for its work and adds no
//! order.
#![expect(unsafe_code, reason = "the driver's table is a C interface")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_void};
use std::time::{Duration, Instant};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUmemorytype, CUmodule, CUresult, CUstream, CUstreamCaptureMode, CUtensorMap,
    CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};

use crate::data::{Buffer, LaunchInputs, Role};
use crate::filetest::Run;

/// A call of the driver that did not succeed, or a program that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// The driver said no.
    #[error("{call}: {}", name_of(.code))]
    Driver {
        /// What was called.
        call: &'static str,
        /// What it answered.
        code: CUresult,
    },
    /// The driver lacks a function.
    #[error("{0}")]
    Missing(String),
    /// A word of a program, or a variable of a module, is unknown.
    #[error("{0}")]
    Program(String),
}

fn name_of(code: &CUresult) -> String {
    code.name()
        .map_or_else(|| format!("error {}", code.0), str::to_string)
}

type Result<T> = std::result::Result<T, RawError>;

/// One device, one context, one module.
pub struct RawMachine {
    driver: &'static Driver,
    device: CUdevice,
    module: CUmodule,
}

macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: handles come from this driver and are never used after they are destroyed;
        // pointers are to local variables or live buffers of the size passed. What kernels do with
        // device memory is the test.
        match unsafe { $driver.$name($($arg),*) } {
            Ok(CUresult::CUDA_SUCCESS) => Ok(()),
            Ok(code) => Err(RawError::Driver { call: stringify!($name), code }),
            Err(missing) => Err(RawError::Missing(missing.to_string())),
        }
    }};
}

impl RawMachine {
    /// Initialises device 0 and loads `image`, PTX text without a trailing zero.
    ///
    /// # Errors
    /// A driver error.
    pub fn new(driver: &'static Driver, image: &str) -> Result<RawMachine> {
        let (mut device, mut context, mut module): (CUdevice, CUcontext, CUmodule) =
            Default::default();
        call!(driver, cuInit(0))?;
        call!(driver, cuDeviceGet(&mut device, 0))?;
        call!(driver, cuDevicePrimaryCtxRetain(&mut context, device))?;
        call!(driver, cuCtxSetCurrent(context))?;
        let text = c_string(image)?;
        call!(driver, cuModuleLoadData(&mut module, text.as_ptr().cast()))?;
        Ok(RawMachine {
            driver,
            device,
            module,
        })
    }

    /// Waits for all work, then ends the context and what belongs to it. An error of the work was
    /// returned before.
    ///
    /// # Errors
    /// The driver refusing to end it.
    pub fn end(self) -> Result<()> {
        drop(call!(self.driver, cuCtxSynchronize()));
        call!(self.driver, cuDevicePrimaryCtxReset_v2(self.device))
    }

    fn function(&self, name: &str) -> Result<CUfunction> {
        let (name, mut function) = (c_string(name)?, CUfunction::NULL);
        call!(
            self.driver,
            cuModuleGetFunction(&mut function, self.module, name.as_ptr())
        )?;
        Ok(function)
    }

    fn variable(&self, name: &str, bytes: usize) -> Result<CUdeviceptr> {
        let (text, mut address, mut size) = (c_string(name)?, CUdeviceptr::default(), 0);
        call!(
            self.driver,
            cuModuleGetGlobal_v2(&mut address, &mut size, self.module, text.as_ptr())
        )?;
        if size == bytes {
            Ok(address)
        } else {
            Err(RawError::Program(format!(
                "`{name}` has {size} bytes, the header says {bytes}"
            )))
        }
    }

    fn alloc(&self, bytes: usize) -> Result<CUdeviceptr> {
        let mut address = CUdeviceptr::default();
        call!(self.driver, cuMemAlloc_v2(&mut address, bytes))?;
        Ok(address)
    }

    /// Launches `run` on the inputs of `case` and waits; gives every output by name.
    ///
    /// # Errors
    /// The first call that fails, a fault of the kernel included.
    pub fn run(&self, run: &Run, case: &LaunchInputs) -> Result<BTreeMap<String, Buffer>> {
        let function = self.function(&run.kernel)?;
        let mut values: Vec<Vec<u64>> = Vec::new();
        let mut outputs = Vec::new();
        let mut buffers = BTreeMap::new();
        for (position, arg) in run.args.iter().enumerate() {
            self.push_maps(run, position, &buffers, &mut values)?;
            let buffer = case.buffer(&arg.name);
            let len = buffer.bytes.len();
            let address = match arg.role {
                Role::Value => {
                    values.push(buffer.bytes.chunks(8).map(word).collect());
                    continue;
                }
                Role::Set | Role::Get => self.variable(&arg.name, len)?,
                Role::In | Role::Out | Role::InOut => {
                    let address = self.alloc(len)?;
                    values.push(vec![address]);
                    buffers.insert(arg.name.clone(), address);
                    address
                }
            };
            if matches!(arg.role, Role::In | Role::InOut | Role::Set) {
                call!(
                    self.driver,
                    cuMemcpyHtoD_v2(address, buffer.bytes.as_ptr().cast(), len)
                )?;
            }
            if arg.is_output() {
                outputs.push((arg, address));
            }
        }
        self.push_maps(run, run.args.len(), &buffers, &mut values)?;
        if run.shared_bytes > 48 << 10 {
            use fercuda_cuda_sys::types::CUfunction_attribute;
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            call!(
                self.driver,
                cuFuncSetAttribute(function, attribute, run.shared_bytes as c_int)
            )?;
        }
        self.launch(function, run, CUstream::NULL, &mut values)?;
        call!(self.driver, cuCtxSynchronize())?;
        let mut out = BTreeMap::new();
        for (arg, address) in outputs {
            let mut buffer = Buffer::zeroed(arg.elem, arg.len);
            call!(
                self.driver,
                cuMemcpyDtoH_v2(
                    buffer.bytes.as_mut_ptr().cast(),
                    address,
                    buffer.bytes.len()
                )
            )?;
            out.insert(arg.name.clone(), buffer);
        }
        Ok(out)
    }

    /// Encodes the tensor maps that come behind so many arguments.
    fn push_maps(
        &self,
        run: &Run,
        position: usize,
        buffers: &BTreeMap<String, CUdeviceptr>,
        values: &mut Vec<Vec<u64>>,
    ) -> Result<()> {
        for map in run.maps.iter().filter(|m| m.position == position) {
            let Some(&address) = buffers.get(&map.buffer) else {
                let name = &map.buffer;
                return Err(RawError::Program(format!("no buffer `{name}` for a map")));
            };
            let mut opaque = CUtensorMap { opaque: [0; 16] };
            let (at, rank) = (address as *mut c_void, map.dims.len() as u32);
            let (dims, strides) = (map.dims.as_ptr(), map.strides.as_ptr());
            let (kind, steps) = (CUtensorMapDataType(map.element), map.steps.as_ptr());
            let interleave = CUtensorMapInterleave(map.interleave);
            let (swizzle, fill) = (
                CUtensorMapSwizzle(map.swizzle),
                CUtensorMapFloatOOBfill(map.fill),
            );
            let promotion = CUtensorMapL2promotion(0);
            if map.channels == 0 {
                let size = map.box_dims.as_ptr();
                call!(
                    self.driver,
                    cuTensorMapEncodeTiled(
                        &mut opaque,
                        kind,
                        rank,
                        at,
                        dims,
                        strides,
                        size,
                        steps,
                        interleave,
                        swizzle,
                        promotion,
                        fill
                    )
                )?;
            } else {
                let (lower, upper) = (map.lower.as_ptr(), map.upper.as_ptr());
                let (channels, pixels) = (map.channels, map.pixels);
                call!(
                    self.driver,
                    cuTensorMapEncodeIm2col(
                        &mut opaque,
                        kind,
                        rank,
                        at,
                        dims,
                        strides,
                        lower,
                        upper,
                        channels,
                        pixels,
                        steps,
                        interleave,
                        swizzle,
                        promotion,
                        fill
                    )
                )?;
            }
            values.push(opaque.opaque.to_vec());
        }
        Ok(())
    }

    fn launch(
        &self,
        function: CUfunction,
        run: &Run,
        stream: CUstream,
        values: &mut [Vec<u64>],
    ) -> Result<()> {
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|v| v.as_mut_ptr().cast()).collect();
        let ([gx, gy, gz], [bx, by, bz], shared) = (run.grid, run.block, run.shared_bytes);
        let arguments = pointers.as_mut_ptr();
        if run.cooperative {
            call!(
                self.driver,
                cuLaunchCooperativeKernel(
                    function, gx, gy, gz, bx, by, bz, shared, stream, arguments
                )
            )
        } else {
            call!(
                self.driver,
                cuLaunchKernel(
                    function,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    shared,
                    stream,
                    arguments,
                    std::ptr::null_mut()
                )
            )
        }
    }

    /// Executes `program` to its end, or to the first call that fails.
    ///
    /// # Errors
    /// That call's; [`RawError::Program`] for words that mean nothing.
    pub fn program(&self, program: &[Vec<String>]) -> Result<()> {
        let mut names = ProgramNames::default();
        for words in program {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.step(&mut names, &words)?;
        }
        Ok(())
    }

    fn step(&self, names: &mut ProgramNames, words: &[&str]) -> Result<()> {
        let d = self.driver;
        match *words {
            ["stream" | "blocking", name] => {
                let mut stream = CUstream::NULL;
                call!(
                    d,
                    cuStreamCreate(&mut stream, u32::from(words[0] == "stream"))
                )?;
                names.streams.insert(name.to_string(), stream);
            }
            ["alloc", name, bytes] => {
                let bytes = number(bytes)?;
                names
                    .memory
                    .insert(name.to_string(), (self.alloc(bytes)?, bytes));
            }
            ["alloc_async", stream, name, bytes] => {
                let (bytes, mut address) = (number(bytes)?, CUdeviceptr::default());
                call!(
                    d,
                    cuMemAllocAsync(&mut address, bytes, names.stream(stream)?)
                )?;
                names.memory.insert(name.to_string(), (address, bytes));
            }
            ["pinned", name, bytes] => {
                let (bytes, mut address) = (number(bytes)?, std::ptr::null_mut());
                call!(d, cuMemHostAlloc(&mut address, bytes, 0))?;
                names.pinned.insert(name.to_string(), address);
            }
            ["free", name] => call!(d, cuMemFree_v2(names.memory(name)?.0))?,
            ["free_async", stream, name] => call!(
                d,
                cuMemFreeAsync(names.memory(name)?.0, names.stream(stream)?)
            )?,
            ["copy_in", stream, name, ref rest @ ..] => {
                let (address, bytes) = names.memory(name)?;
                let from = match *rest {
                    ["from", host] => names.pinned(host)?,
                    _ => {
                        names.host.push(vec![0x3f; bytes]);
                        names
                            .host
                            .last_mut()
                            .map_or(std::ptr::null_mut(), Vec::as_mut_ptr)
                            .cast()
                    }
                };
                call!(
                    d,
                    cuMemcpyHtoDAsync_v2(address, from, bytes, names.stream(stream)?)
                )?;
            }
            ["copy_out", stream, name, ref rest @ ..] => {
                let (address, bytes) = names.memory(name)?;
                let to = match *rest {
                    ["to", host] => names.pinned(host)?,
                    _ => {
                        names.host.push(vec![0; bytes]);
                        names
                            .host
                            .last_mut()
                            .map_or(std::ptr::null_mut(), Vec::as_mut_ptr)
                            .cast()
                    }
                };
                call!(
                    d,
                    cuMemcpyDtoHAsync_v2(to, address, bytes, names.stream(stream)?)
                )?;
            }
            ["copy", stream, to, from] => {
                let ((to, bytes), (from, _)) = (names.memory(to)?, names.memory(from)?);
                call!(
                    d,
                    cuMemcpyDtoDAsync_v2(to, from, bytes, names.stream(stream)?)
                )?;
            }
            ["memset", stream, name] => {
                let (address, bytes) = names.memory(name)?;
                call!(d, cuMemsetD8Async(address, 0, bytes, names.stream(stream)?))?;
            }
            ["launch", stream, kernel, ref arguments @ ..] => {
                let mut values = Vec::new();
                for argument in arguments {
                    values.push(vec![names.argument(argument)?]);
                }
                let (grid, block) = names.shape.unwrap_or((1, 64));
                let shape = Run::shape(kernel, grid, block);
                self.launch(
                    self.function(kernel)?,
                    &shape,
                    names.stream(stream)?,
                    &mut values,
                )?;
            }
            ["record", stream, event] => {
                let mut handle = CUevent::NULL;
                call!(d, cuEventCreate(&mut handle, 0))?;
                call!(d, cuEventRecord(handle, names.stream(stream)?))?;
                names.events.insert(event.to_string(), handle);
            }
            ["wait", stream, event] => call!(
                d,
                cuStreamWaitEvent(names.stream(stream)?, names.event(event)?, 0)
            )?,
            ["sync"] => call!(d, cuCtxSynchronize())?,
            ["sync", stream] => call!(d, cuStreamSynchronize(names.stream(stream)?))?,
            ["sync_event", event] => call!(d, cuEventSynchronize(names.event(event)?))?,
            ["pause"] => pause()?,
            ["capture", stream] => {
                call!(
                    d,
                    cuStreamBeginCapture_v2(
                        names.stream(stream)?,
                        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED
                    )
                )?;
            }
            ["end_capture", stream, graph] => {
                let (mut captured, mut ready) = (CUgraph::NULL, CUgraphExec::NULL);
                call!(d, cuStreamEndCapture(names.stream(stream)?, &mut captured))?;
                call!(d, cuGraphInstantiateWithFlags(&mut ready, captured, 0))?;
                names.graphs.insert(graph.to_string(), ready);
            }
            ["launch_graph", stream, graph] => {
                let ready = *names.graphs.get(graph).ok_or_else(|| unknown(graph))?;
                call!(d, cuGraphLaunch(ready, names.stream(stream)?))?;
            }
            ["shape", grid, block] => {
                names.shape = Some((number(grid)? as u32, number(block)? as u32));
            }
            ["destroy", name] => call!(d, cuStreamDestroy_v2(names.stream(name)?))?,
            _ => return self.part(names, words),
        }
        Ok(())
    }

    /// An operation that names a part of an allocation.
    fn part(&self, names: &mut ProgramNames, words: &[&str]) -> Result<()> {
        let d = self.driver;
        match *words {
            ["managed", name, bytes] => {
                let (bytes, mut address) = (number(bytes)?, CUdeviceptr::default());
                call!(d, cuMemAllocManaged(&mut address, bytes, 1))?;
                names.memory.insert(name.to_string(), (address, bytes));
            }
            ["pitched", name, width, height] => {
                let (width, height) = (number(width)?, number(height)?);
                let (mut address, mut pitch) = (CUdeviceptr::default(), 0);
                call!(
                    d,
                    cuMemAllocPitch_v2(&mut address, &mut pitch, width, height, 4)
                )?;
                let bytes = pitch * height;
                names.memory.insert(name.to_string(), (address, bytes));
            }
            ["fill", name, offset, bytes] => {
                let address = names.place(name, offset)?;
                call!(d, cuMemsetD8_v2(address, 0, number(bytes)?))?;
            }
            ["fill_words", name, offset, count] => {
                let address = names.place(name, offset)?;
                call!(d, cuMemsetD32_v2(address, 0, number(count)?))?;
            }
            ["fill_rows", name, pitch, width, height] => {
                let (address, pitch) = (names.place(name, "0")?, number(pitch)?);
                let (width, height) = (number(width)?, number(height)?);
                call!(d, cuMemsetD2D8_v2(address, pitch, 0, width, height))?;
            }
            ["copy_rows", to, to_pitch, from, from_pitch, width, height] => {
                let rows = CUDA_MEMCPY2D {
                    srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
                    srcDevice: names.place(from, "0")?,
                    srcPitch: number(from_pitch)?,
                    dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
                    dstDevice: names.place(to, "0")?,
                    dstPitch: number(to_pitch)?,
                    WidthInBytes: number(width)?,
                    Height: number(height)?,
                    ..CUDA_MEMCPY2D::default()
                };
                call!(d, cuMemcpy2D_v2(&raw const rows))?;
            }
            ["move", to, to_offset, from, from_offset, bytes] => {
                let (to, from) = (names.place(to, to_offset)?, names.place(from, from_offset)?);
                call!(d, cuMemcpyDtoD_v2(to, from, number(bytes)?))?;
            }
            ["upload", name, offset, bytes] => {
                let (to, from) = (names.place(name, offset)?, vec![0x3f_u8; number(bytes)?]);
                call!(d, cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()))?;
            }
            ["download", name, offset, bytes] => {
                let (from, mut to) = (names.place(name, offset)?, vec![0_u8; number(bytes)?]);
                call!(d, cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()))?;
            }
            _ => {
                return Err(RawError::Program(format!(
                    "`{}` is no operation",
                    words.join(" ")
                )));
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct ProgramNames {
    /// Blocks and threads of a launch.
    shape: Option<(u32, u32)>,
    streams: BTreeMap<String, CUstream>,
    events: BTreeMap<String, CUevent>,
    graphs: BTreeMap<String, CUgraphExec>,
    memory: BTreeMap<String, (CUdeviceptr, usize)>,
    pinned: BTreeMap<String, *mut c_void>,
    /// Pageable memory of copies; kept, so that no copy outlives it.
    host: Vec<Vec<u8>>,
}

impl ProgramNames {
    fn stream(&self, name: &str) -> Result<CUstream> {
        if name == "default" {
            Ok(CUstream::NULL)
        } else {
            self.streams.get(name).copied().ok_or_else(|| unknown(name))
        }
    }

    fn event(&self, name: &str) -> Result<CUevent> {
        self.events.get(name).copied().ok_or_else(|| unknown(name))
    }

    fn memory(&self, name: &str) -> Result<(CUdeviceptr, usize)> {
        self.memory.get(name).copied().ok_or_else(|| unknown(name))
    }

    /// The address `offset` bytes behind the start of `name`, wherever that is; in pinned memory
    /// too.
    fn place(&self, name: &str, offset: &str) -> Result<CUdeviceptr> {
        let address = match self.memory(name) {
            Ok((address, _)) => address,
            Err(_) => self.pinned(name)?.expose_provenance() as CUdeviceptr,
        };
        let offset: i64 = offset.parse().map_err(|_| unknown(offset))?;
        Ok(address.wrapping_add_signed(offset))
    }

    /// A launch's argument: an address or a number.
    fn argument(&self, text: &str) -> Result<u64> {
        if let Ok(number) = text.parse::<i64>() {
            return Ok(number as u64);
        }
        let (name, offset) = text.split_once('+').unwrap_or((text, "0"));
        self.place(name, offset)
    }

    fn pinned(&self, name: &str) -> Result<*mut c_void> {
        self.pinned.get(name).copied().ok_or_else(|| unknown(name))
    }
}

/// Waits until every other thread of this process is blocked: queued work is complete then, unless
/// it waits for something else. A fixed time would depend on the machine's load. So no other thread
/// may be busy in the process: a program with this runs in one of its own.
fn pause() -> Result<()> {
    let others_wait = || -> std::io::Result<bool> {
        let own = std::fs::read_link("/proc/thread-self")?;
        for task in std::fs::read_dir("/proc/self/task")? {
            let task = task?;
            // A thread that has ended meanwhile is not busy.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let state = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next());
            if own.file_name() != Some(&task.file_name()) && !matches!(state, None | Some('S')) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let begun = Instant::now();
    for looks in 0.. {
        std::thread::sleep(Duration::from_millis(5));
        let wait = others_wait().map_err(|e| RawError::Program(format!("`pause`: {e}")))?;
        if wait && looks >= 3 {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(60) {
            break;
        }
    }
    Err(RawError::Program(
        "`pause`: the device is never idle".to_owned(),
    ))
}

fn unknown(name: &str) -> RawError {
    RawError::Program(format!("unknown name `{name}`"))
}

fn number(text: &str) -> Result<usize> {
    text.parse()
        .map_err(|_| RawError::Program(format!("`{text}` is neither a name nor a number")))
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| RawError::Program("a zero byte in a text".to_string()))
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
