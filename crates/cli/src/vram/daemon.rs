//! `fercuda vram mount`: the daemon that serves a mount.
//!
//! In the foreground the daemon is this process; otherwise it is a child, and the parent waits
//! until files can be used. The daemon exits when the filesystem is unmounted; SIGTERM, SIGINT and
//! SIGHUP unmount it.
//!
//! Invariant: if `mount` exits with status 0, the filesystem is mounted.
//! Elsewhere: the filesystem itself and the FUSE requests (`fercuda-vramfs`).

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_cuda::sys::types::CUdevice_attribute;
use fercuda_cuda::{Context, Cuda, Device};
use fercuda_governor::MemorySize;
use fercuda_vramfs::array::{ArrayLayout, MAX_DEVICES};
use fercuda_vramfs::layout::DATA_BYTES;
use fercuda_vramfs::medium::Verify;
use fercuda_vramfs::mount::{
    self, Mount, MountLocation, MountOptions, MountRestrictions, PageCache, Scrub, StoreGeometry,
};
use fercuda_vramfs::{KernelTarget, Kernels};
use rustix::io::FdFlags;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, configure_io_flusher_behavior, getegid, geteuid, getrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::accounts;
use super::show::pid_namespace;
use crate::out::{note, say, step};
use crate::own_program;
use crate::run::child::is_ignored;
use crate::run::{DeviceKind, LibraryFolders};
use crate::status::bail_usage;
use crate::terminal::bytes;

/// Line that a daemon prints when files can be used.
const READY: &str = "ready";
/// Maximum default of concurrently served requests.
const DEFAULT_THREADS_MAX: usize = 16;
/// Minimum default of the inode limit.
const DEFAULT_INODES_MIN: u64 = 1 << 20;

/// Mount an empty filesystem in GPU memory on a directory.
#[derive(clap::Args)]
#[command(after_help = "\
Returns when files can be used; a daemon keeps running until the filesystem is
unmounted. With --foreground this process is the daemon. SIGTERM, SIGINT and
SIGHUP unmount it; if a file is open, the unmount is lazy, and the daemon exits
when the last file is closed.

With --ecc rs, 128 KiB of data take 137 KiB of device memory. A background
scrubber checks all of it repeatedly, with low-priority kernels, and corrects
errors. --verify read also compares data with their checksums before each read
returns; --verify scrub does so only where it costs nothing, in reads that span
several blocks. The default is scrub on a device with hardware ECC, and read on
others.

--stripe 0,1 distributes each file over two devices in units of 128 KiB, with
the capacity of both; if one fails, the data on it are lost, and the other
stays usable. --mirror 0,1 keeps all data on each device, with --size of each:
if one fails, programs continue (df, stat and top report it), and errors that
one cannot correct are repaired from the other. The devices may differ in model
and size.

Mounting requires root or fusermount3; by default only root can let other users
in (--allow-other).

Exit status: 0 when mounted (with --foreground: when unmounted), 1 if that
failed.
  fercuda vram mount /mnt/vram --size 64GiB --mirror 0,1
  fercuda vram df; fercuda vram stat /mnt/vram; fercuda vram umount /mnt/vram")]
pub(crate) struct MountArgs {
    /// Mount point, an empty directory.
    dir: PathBuf,
    /// Capacity for data, such as 1GiB; rounded up to a multiple of 128 KiB. The
    /// software device has FERCUDA_SOFT_MEMORY, 8 GiB by default, also for the code.
    #[arg(long, value_name = "BYTES")]
    size: MemorySize,
    /// Maximum number of files and directories [default: a million, or one for
    /// each 4 KiB if that is more].
    #[arg(long, value_name = "N")]
    inodes: Option<u32>,
    /// Kind of device [default: FERCUDA_DEVICE, or auto].
    #[arg(long, value_enum)]
    device: Option<DeviceKind>,
    /// Device ordinal.
    #[arg(long, value_name = "N", default_value_t = 0)]
    number: u32,
    /// Devices to stripe each file over, by their ordinals.
    #[arg(long, value_name = "N,N..", conflicts_with_all = ["number", "mirror"])]
    stripe: Option<DeviceOrdinals>,
    /// Devices to mirror all files on, by their ordinals.
    #[arg(long, value_name = "N,N..", conflicts_with = "number")]
    mirror: Option<DeviceOrdinals>,
    /// Error-correcting code.
    #[arg(long, value_enum, default_value = "rs")]
    ecc: EccOption,
    /// Whether reads verify checksums first, or only the scrubber [default: see below].
    #[arg(long, value_enum)]
    verify: Option<VerifyOption>,
    /// What the kernel caches in host memory.
    #[arg(long, value_enum, default_value = "none")]
    cache: CacheOption,
    /// Owner of the root directory, a number or a name [default: the caller].
    #[arg(long, value_name = "USER", value_parser = accounts::user)]
    uid: Option<u32>,
    /// Group of the root directory, a number or a name [default: the caller's].
    #[arg(long, value_name = "GROUP", value_parser = accounts::group)]
    gid: Option<u32>,
    /// Mode of the root directory, in octal.
    #[arg(long, value_parser = octal, default_value = "755")]
    mode: u32,
    /// Allow other users access, subject to file modes.
    #[arg(long)]
    allow_other: bool,
    /// Ignore set-user-ID and set-group-ID bits of programs on it.
    #[arg(long)]
    nosuid: bool,
    /// Refuse to open device files on it.
    #[arg(long)]
    nodev: bool,
    /// Refuse to execute programs on it.
    #[arg(long)]
    noexec: bool,
    /// Number of worker threads, which is the number of requests served
    /// concurrently [default: one for each processor, 2 to 16].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=256))]
    threads: Option<u16>,
    /// Maximum scrub rate per second, or off [default: whatever takes a twentieth
    /// of the time].
    #[arg(long, value_name = "BYTES", value_parser = scrub_rate)]
    scrub_rate: Option<Scrub>,
    /// Serve in this process until unmounted.
    #[arg(long)]
    foreground: bool,
    /// Internal: reports readiness to the parent, then detaches from its streams.
    #[arg(long, hide = true)]
    detached: bool,
}

/// Ordinals of at least two different devices.
#[derive(Clone)]
struct DeviceOrdinals(Vec<u32>);

impl FromStr for DeviceOrdinals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // mount(8) separates options with commas, so a colon is accepted too.
        let all = text.split([',', ':']).map(str::parse);
        let all: Vec<u32> = all.collect::<Result<_, _>>().map_err(|_| {
            "not device ordinals, such as 0,1\ntry: fercuda doctor, which lists them".to_owned()
        })?;
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        match (all.len(), once.len()) {
            (1, _) => Err("one device is neither a stripe nor a mirror\ntry: --number".to_owned()),
            (given, once) if once < given => {
                Err("a device is named twice, and all have to be different".to_owned())
            }
            (given, _) if given > MAX_DEVICES => Err(format!("more than {MAX_DEVICES} devices")),
            _ => Ok(Self(all)),
        }
    }
}

impl MountArgs {
    /// Whether it is the daemon of another `fercuda`.
    pub(super) fn is_detached(&self) -> bool {
        self.detached
    }

    /// Device ordinals, and how blocks are distributed if there are several.
    fn devices(&self) -> (Vec<u32>, Option<ArrayLayout>) {
        match (&self.stripe, &self.mirror) {
            (Some(all), _) => (all.0.clone(), Some(ArrayLayout::Stripe)),
            (_, Some(all)) => (all.0.clone(), Some(ArrayLayout::Mirror)),
            (None, None) => (vec![self.number], None),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EccOption {
    /// Reed-Solomon, RS(136,128): any four of a block's 136 rows, bursts of 3 KiB.
    Rs,
    /// No code: data only.
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum VerifyOption {
    /// Before each read returns.
    Read,
    /// In the background only.
    Scrub,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CacheOption {
    /// Nothing.
    None,
    /// Pages that were read or written (page cache).
    Keep,
}

fn octal(text: &str) -> Result<u32, String> {
    let value = u32::from_str_radix(text, 8).ok().filter(|it| *it <= 0o7777);
    value.ok_or_else(|| "not an octal number up to 7777".to_owned())
}

fn scrub_rate(text: &str) -> Result<Scrub, String> {
    match text {
        "off" => Ok(Scrub::Off),
        text => text
            .parse::<MemorySize>()
            .map(|rate| Scrub::Rate(rate.get()))
            .map_err(|error| error.to_string()),
    }
}

pub(super) fn mount(args: &MountArgs) -> Result<ExitCode> {
    let (asked, unit) = (args.size.get(), DATA_BYTES as u64);
    if !args.detached
        && let Some(rounded) = asked.checked_next_multiple_of(unit)
        && rounded != asked
    {
        note!(
            "--size {} is rounded up to {}, a multiple of {}",
            args.size,
            bytes(rounded),
            bytes(unit)
        );
    }
    match args.foreground {
        true => serve(args),
        false => detach(args),
    }
}

/// Starts the daemon as a child and waits until it is ready.
fn detach(args: &MountArgs) -> Result<ExitCode> {
    // Inserted right after the command's name: after a lone `--` words are operands.
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let name = words.iter().position(|word| word == "mount");
    let (before, behind) = words.split_at(name.map_or(0, |at| at + 1));
    set_close_on_exec().context("cannot start the daemon")?;
    let mut child = Command::new(own_program::path())
        .args(before)
        .args(["--foreground", "--detached"])
        .args(behind)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the daemon")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        say!(
            "mounted at {}, by process {}",
            args.dir.display(),
            child.id()
        );
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    if let Some(signal) = status.signal() {
        bail!(
            "cannot mount at {}: the daemon was killed by signal {signal} during its start\ntry: dmesg, which shows whether the kernel's OOM killer did it",
            args.dir.display()
        );
    }
    // The daemon has printed its error.
    Ok(ExitCode::from(
        status.code().map_or(1, |code| code.max(1) as u8),
    ))
}

/// Marks every inherited descriptor close-on-exec. Otherwise the daemon would hold the caller's
/// locks, and would keep pipes from reaching EOF, until it is unmounted.
fn set_close_on_exec() -> Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        if number > libc::STDERR_FILENO {
            #[expect(
                unsafe_code,
                reason = "inherited descriptors are known only by their numbers"
            )]
            // SAFETY: the descriptor was open just now, and no other thread closes any meanwhile.
            let it = unsafe { BorrowedFd::borrow_raw(number) };
            rustix::io::fcntl_setfd(it, FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

/// Serves requests until the filesystem is unmounted.
fn serve(args: &MountArgs) -> Result<ExitCode> {
    let what = || format!("cannot mount at {}", args.dir.display());
    if args.detached {
        // It fails if this process leads a session already, which is the desired state.
        rustix::process::setsid().map(drop).unwrap_or_default();
    }
    let has_code = args.ecc == EccOption::Rs;
    let scrub = match args.scrub_rate {
        Some(_) if !has_code => {
            bail_usage!("--scrub-rate requires --ecc rs\ntry: without --ecc off")
        }
        None if !has_code => Scrub::Off,
        asked => asked.unwrap_or(Scrub::Share),
    };
    // Registered before anything is mounted, so that no signal is lost.
    let signals = register_signals()?;
    let cuda = match args.device {
        Some(kind) => Cuda::select(kind.into()),
        None => Cuda::from_env(),
    };
    let cuda = cuda.with_context(what)?;
    let (numbers, spread) = args.devices();
    let devices = numbers.iter().map(|number| cuda.device(*number));
    let devices: Vec<Device> = devices.collect::<Result<_, _>>().with_context(what)?;
    for device in &devices {
        step!("device {device}");
    }
    let contexts = devices.iter().map(|device| Context::primary(*device));
    let contexts: Vec<Context> = contexts.collect::<Result<_, _>>().with_context(what)?;
    let threads = match args.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism()
            .map_or(2, |it| it.get().clamp(2, DEFAULT_THREADS_MAX)),
    };
    let verify = match (args.ecc, args.verify) {
        (EccOption::Off, Some(_)) => {
            bail_usage!("--verify requires --ecc rs\ntry: without --ecc off")
        }
        (_, Some(when)) => when,
        (_, None) if have_hardware_ecc(&devices)? => VerifyOption::Scrub,
        (_, None) => VerifyOption::Read,
    };
    let shape = StoreGeometry {
        size_bytes: args.size.get(),
        has_code,
        verify: match verify {
            VerifyOption::Read => Verify::Read,
            VerifyOption::Scrub => Verify::Scrub,
        },
        threads,
    };
    let pages = args.size.get() / 4096;
    let mut options = MountOptions {
        inodes: args
            .inodes
            .unwrap_or_else(|| u32::try_from(pages.max(DEFAULT_INODES_MIN)).unwrap_or(u32::MAX)),
        user: args.uid.unwrap_or_else(|| geteuid().as_raw()),
        group: args.gid.unwrap_or_else(|| getegid().as_raw()),
        mode: args.mode,
        allow_other: args.allow_other,
        cache: match args.cache {
            CacheOption::None => PageCache::None,
            CacheOption::Keep => PageCache::Keep,
        },
        threads,
        scrub,
        forbidden: MountRestrictions {
            suid: args.nosuid,
            dev: args.nodev,
            exec: args.noexec,
        },
        facts: describe_settings(args, &devices, verify, threads)?,
    };
    // Locked after the device memory is mapped: an unprivileged process that may lock only a part
    // would be refused later allocations.
    let mut lock = || {
        let is_locked = !cuda.is_software() && protect_memory();
        options.facts += &format!("locked {is_locked}\n");
        options.clone()
    };
    let mount = match spread {
        None => mount::store(&contexts[0], &shape, &compile_kernels)
            .and_then(|store| Mount::new(store, &args.dir, &lock())),
        Some(spread) => mount::array(&contexts, spread, &shape, &compile_kernels)
            .and_then(|store| Mount::new(store, &args.dir, &lock())),
    };
    let mount = mount
        .map_err(|error| hint_at_memory(error, cuda.is_software()))
        .with_context(what)?;
    spawn_signal_thread(signals, mount.place());
    if args.detached {
        // The parent may have exited. Then this fails and the filesystem is unmounted, as no caller
        // knows of it.
        print_line(READY)?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        // The daemon must not keep its working directory's filesystem busy.
        std::env::set_current_dir("/")?;
    } else {
        print_line(&format!("mounted at {}", mount.at().display()))?;
    }
    mount.wait()?;
    Ok(ExitCode::SUCCESS)
}

/// Adds to an error about device memory how the software device gets more.
fn hint_at_memory(error: fercuda_vramfs::Error, is_software: bool) -> anyhow::Error {
    match error {
        fercuda_vramfs::Error::Room { .. } if is_software => anyhow!(
            "{error}\ntry: a larger FERCUDA_SOFT_MEMORY, which is 8GiB by default, as in \
             FERCUDA_SOFT_MEMORY=16GiB"
        ),
        other => other.into(),
    }
}

/// Writes the compiled kernels to standard output, so that the compiler's memory is freed with this
/// process.
#[derive(clap::Args)]
pub(crate) struct KernelsArgs {
    /// Compute capability of the target, as two numbers.
    major: u32,
    minor: u32,
    /// Emit PTX instead of machine code, which needs a compiler that supports the target.
    #[arg(long)]
    ptx: bool,
    /// Write PTX for a release to this file instead.
    #[arg(long, requires = "ptx")]
    ship: Option<PathBuf>,
}

pub(super) fn write_kernels(args: &KernelsArgs) -> Result<ExitCode> {
    let code = Kernels::compile(KernelTarget {
        capability: (args.major, args.minor),
        is_text: args.ptx,
    })?;
    if let Some(file) = &args.ship {
        fercuda_vramfs::write_shipped(file, &code)?;
        return Ok(ExitCode::SUCCESS);
    }
    std::io::stdout().lock().write_all(&code)?;
    Ok(ExitCode::SUCCESS)
}

/// The kernels for a context: those of the release where they serve as well, else compiled, in a
/// child process: the tens of MiB that the compiler takes would stay locked in the daemon's
/// memory.
///
/// A GPU gets machine code where NVRTC is found, as the driver's own compiler leaves as much
/// memory behind; the release's PTX where it is not.
fn compile_kernels(context: &Context) -> fercuda_vramfs::Result<Kernels> {
    let target = KernelTarget::of(context)?;
    if target.is_text
        && let Some(kernels) = shipped_kernels(context)?
    {
        return Ok(kernels);
    }
    let compile = || {
        // The running executable itself, even if its path has been replaced.
        let mut other = Command::new("/proc/self/exe");
        let (major, minor) = target.capability;
        other.args(["vram", "kernels"]);
        other.args([major.to_string(), minor.to_string()]);
        other.args(target.is_text.then_some("--ptx"));
        let made = other.stdin(Stdio::null()).output().ok()?;
        made.status.success().then_some(made.stdout)
    };
    match compile() {
        Some(code) => {
            #[expect(
                unsafe_code,
                reason = "loaded machine code is trusted to be the crate's kernels"
            )]
            // SAFETY: the child is this same executable, which just compiled the code; no other
            // process writes to the pipe.
            unsafe {
                Kernels::of(context, &code)
            }
        }
        None => match shipped_kernels(context)? {
            Some(kernels) => Ok(kernels),
            // Compile in this process, or fail with the reason.
            None => Kernels::load(context),
        },
    }
}

/// The kernels that stand beside the libraries of this installation, if there are any.
fn shipped_kernels(context: &Context) -> fercuda_vramfs::Result<Option<Kernels>> {
    let folders = LibraryFolders::of_this_program().ok();
    let Some(file) = folders.and_then(|folders| folders.shipped_kernels()) else {
        return Ok(None);
    };
    match fercuda_vramfs::read_shipped(&file)? {
        Some(ptx) => {
            #[expect(
                unsafe_code,
                reason = "PTX of the release is trusted to be the crate's kernels"
            )]
            // SAFETY: its hashes are those of this version's source and of what was compiled from
            // it when the release was made; a user that can write beside the program's libraries
            // can as well replace them.
            let kernels = unsafe { Kernels::of(context, &ptx) };
            kernels.map(Some)
        }
        None => Ok(None),
    }
}

/// Prints a line to standard output. Unlike [`say!`] it returns an error instead of exiting, which
/// would leave a dead mount.
fn print_line(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.context("cannot report the mount on standard output, so it is unmounted again")
}

/// Static settings that the daemon reports beside its counters.
fn describe_settings(
    args: &MountArgs,
    devices: &[Device],
    verify: VerifyOption,
    threads: usize,
) -> Result<String> {
    let ecc = match (args.ecc, verify) {
        (EccOption::Off, _) => ["off", "never"],
        (EccOption::Rs, VerifyOption::Read) => ["rs", "read"],
        (EccOption::Rs, VerifyOption::Scrub) => ["rs", "scrub"],
    };
    let cache = match args.cache {
        CacheOption::None => "none",
        CacheOption::Keep => "keep",
    };
    let mut names = Vec::new();
    for device in devices {
        let name = device.name()?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let (numbers, spread) = args.devices();
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    let which = match spread {
        None => format!("device_number {}\n", args.number),
        Some(ArrayLayout::Stripe) => {
            format!("array stripe\ndevice_numbers {}\n", numbers.join(","))
        }
        Some(ArrayLayout::Mirror) => {
            format!("array mirror\ndevice_numbers {}\n", numbers.join(","))
        }
    };
    // A client that waits for the daemon's exit needs to know in which namespace its PID is valid.
    let namespace = pid_namespace().map_or_else(
        |_| String::new(),
        |number| format!("pid_namespace {number}\n"),
    );
    Ok(format!(
        "device {}\n{which}ecc {}\nverify {}\ncache {cache}\nthreads {threads}\npid {}\n{namespace}",
        names.join(", "),
        ecc[0],
        ecc[1],
        std::process::id(),
    ))
}

/// Whether all devices have hardware ECC.
fn have_hardware_ecc(devices: &[Device]) -> Result<bool> {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_ECC_ENABLED;
    for device in devices {
        if device.attribute(attribute)? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Protects the daemon from memory pressure. It locks its used pages: a daemon that serves swap
/// would otherwise wait for itself. Where only a part may be locked, none is: later allocations
/// would be refused. As root it also sets `PR_SET_IO_FLUSHER`, so that reclaim for it does not
/// write to the filesystem that it serves, and exempts itself from the OOM killer, as it holds
/// other programs' data.
fn protect_memory() -> bool {
    if geteuid().is_root() {
        // This needs CAP_SYS_RESOURCE, which a root in a container may lack; failure changes
        // nothing else.
        configure_io_flusher_behavior(true).unwrap_or_default();
        std::fs::write("/proc/self/oom_score_adj", "-1000").unwrap_or_default();
    }
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "malloc_trim has no safe wrapper")]
    // SAFETY: it only returns free heap memory: what start-up has freed would be locked as well.
    unsafe {
        libc::malloc_trim(0);
    }
    let may = geteuid().is_root() || getrlimit(Resource::Memlock).current.is_none();
    let how = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    may && rustix::mm::mlockall(how).is_ok()
}

/// Registers the termination signals; the returned socket receives one byte for each.
fn register_signals() -> Result<UnixStream> {
    let (receiver, sender) = UnixStream::pair()?;
    for number in [SIGTERM, SIGINT, SIGHUP] {
        if !is_ignored(number) {
            signal_hook::low_level::pipe::register(number, sender.try_clone()?)
                .context("cannot register signal handlers")?;
        }
    }
    Ok(receiver)
}

/// Spawns a thread that unmounts at the first signal, and exits the process at the second one if
/// the filesystem is still in use.
fn spawn_signal_thread(mut signals: UnixStream, place: MountLocation) {
    std::thread::spawn(move || {
        let mut byte = [0];
        let mut was_asked = false;
        while signals.read_exact(&mut byte).is_ok() {
            if was_asked {
                // From here on programs with open files get an error.
                std::process::exit(1);
            }
            was_asked = true;
            let gone = place.unmount(false).or_else(|in_use| {
                // Unmounted before anything is printed, as printing may block on its reader.
                place.unmount(true).inspect(|_| {
                    note!(
                        "{in_use}\nunmounted lazily: the daemon exits when the last user is gone"
                    );
                })
            });
            match gone {
                Ok(true) => {}
                Ok(false) => note!(
                    "it is not the topmost mount at its mount point: the daemon exits when the last user is gone, or at the next signal"
                ),
                Err(error) => note!("{error}"),
            }
        }
    });
}
