//! `fercuda vram mount`: the process that a mount is.
//!
//! It is this one in the foreground, else one that it starts and waits for until files can be used. It ends when it is
//! unmounted, which a signal to end asks for too.
//!
//! Invariant: whoever gets status 0 from `mount` has it mounted.
//! Elsewhere: what is mounted, and how requests are answered (`fercuda-vramfs`).

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use fercuda_cuda::sys::types::CUdevice_attribute;
use fercuda_cuda::{Context, Cuda, Device};
use fercuda_governor::ByteSize;
use fercuda_vramfs::array::{MOST, Spread};
use fercuda_vramfs::medium::Verify;
use fercuda_vramfs::mount::{
    self, Forbidden, Mount, MountOptions, PageCache, Place, Scrub, StoreGeometry,
};
use fercuda_vramfs::{Kernels, Target};
use rustix::io::FdFlags;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, configure_io_flusher_behavior, getegid, geteuid, getrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::show::pid_namespace;
use crate::out::{note, say};
use crate::run::DeviceKind;
use crate::run::child::is_ignored;

/// What a daemon says when files can be used.
const READY: &str = "ready";
/// Requests that are answered at a time, at most, unless more are asked for.
const THREADS: usize = 16;
/// Inodes that there can be at least, unless fewer are asked for.
const INODES: u64 = 1 << 20;

/// Mounts an empty filesystem in device memory at an empty directory.
#[derive(clap::Args)]
#[command(after_help = "\
Returns when files can be used; a process stays behind, and ends when it is
unmounted. With --foreground it is this one. SIGTERM, SIGINT and SIGHUP unmount
it; while somebody has a file open there it vanishes, and ends after the last.

With --ecc rs each 128 KiB of data take 137 KiB of the device. All of it is
looked at again and again in the background, by work that the device does when
it has no other, and what is wrong is corrected. --verify read compares what is
read with its sums besides, before anybody gets it; --verify scrub does so only
where it costs nothing, which is for calls that reach over several blocks. The
default is scrub on a device with ECC of its own, and read on others.

--stripe 0,1 has a file's parts of 128 KiB on two devices in turn, with the room
of both; when one fails, what lay there is lost, and the other goes on. --mirror
0,1 has all of it on each, with --size of each: when one fails nobody notices
but who looks (df, stat, top), and what one cannot correct comes from the other.
The devices may be unlike.

Root, or fusermount3, is needed to mount; root, to let others in by default.

Exit status: 0 when it is mounted (in the foreground: when it is unmounted), 1
when that failed.

Examples:
  fercuda vram mount /mnt/vram --size 8GiB
  fercuda vram mount scratch --size 256MiB --device soft --foreground
  fercuda vram mount /mnt/vram --size 64GiB --mirror 0,1
  fercuda vram df; fercuda vram stat /mnt/vram; fercuda vram umount /mnt/vram")]
pub(crate) struct MountArgs {
    /// The directory, without entries.
    dir: PathBuf,
    /// Room for data, such as 8GiB.
    #[arg(long, value_name = "BYTES")]
    size: ByteSize,
    /// How many files and directories at most [default: a million, or one for
    /// each 4 KiB if that is more].
    #[arg(long, value_name = "N")]
    inodes: Option<u32>,
    /// Which device; as FERCUDA_DEVICE says, or auto, without this.
    #[arg(long, value_enum)]
    device: Option<DeviceKind>,
    /// Which of several, by its number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    number: u32,
    /// Several, by their numbers, with parts of each file on all of them.
    #[arg(long, value_name = "N,N..", conflicts_with_all = ["number", "mirror"])]
    stripe: Option<Numbers>,
    /// Several, by their numbers, with all files on each.
    #[arg(long, value_name = "N,N..", conflicts_with = "number")]
    mirror: Option<Numbers>,
    /// The code that corrects errors.
    #[arg(long, value_enum, default_value = "rs")]
    ecc: Ecc,
    /// When data are compared with their sums [default: see below].
    #[arg(long, value_enum)]
    verify: Option<When>,
    /// What the kernel keeps in the host's memory.
    #[arg(long, value_enum, default_value = "none")]
    cache: Keeps,
    /// The owner of the root directory [default: who mounts].
    #[arg(long)]
    uid: Option<u32>,
    /// The group of the root directory [default: that of who mounts].
    #[arg(long)]
    gid: Option<u32>,
    /// The permissions of the root directory, in octal.
    #[arg(long, value_parser = octal, default_value = "755")]
    mode: u32,
    /// Let others use it too, as far as modes let them.
    #[arg(long)]
    allow_other: bool,
    /// Pass over bits that set the user or group of who runs a program there.
    #[arg(long)]
    nosuid: bool,
    /// Open no devices there.
    #[arg(long)]
    nodev: bool,
    /// Run no programs there.
    #[arg(long)]
    noexec: bool,
    /// Requests that are answered at a time [default: as many as there are
    /// processors, 2 to 16].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=256))]
    threads: Option<u16>,
    /// Data that are looked at in the background in a second at most, or off
    /// [default: as much as can be in a twentieth of the time].
    #[arg(long, value_name = "BYTES", value_parser = scrub_rate)]
    scrub_rate: Option<Scrub>,
    /// Stay here until it is unmounted.
    #[arg(long)]
    foreground: bool,
    /// Started by this program: says when it is ready, and then nothing.
    #[arg(long, hide = true)]
    detached: bool,
}

/// Several devices.
#[derive(Clone)]
struct Numbers(Vec<u32>);

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A comma ends an option of mount(8).
        let all = text.split([',', ':']).map(str::parse);
        let all: Vec<u32> = all.collect::<Result<_, _>>().map_err(|_| {
            "not numbers of devices, such as 0,1\ntry: fercuda doctor, which lists them".to_owned()
        })?;
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        match (all.len(), once.len()) {
            (1, _) => Err("one device alone is not several\ntry: --number".to_owned()),
            (given, once) if once < given => {
                Err("a device is named twice, and would fail twice at once".to_owned())
            }
            (given, _) if given > MOST => Err(format!("more than {MOST} devices")),
            _ => Ok(Self(all)),
        }
    }
}

impl MountArgs {
    /// Its devices, and how blocks lie on them if they are several.
    fn devices(&self) -> (Vec<u32>, Option<Spread>) {
        match (&self.stripe, &self.mirror) {
            (Some(all), _) => (all.0.clone(), Some(Spread::Stripe)),
            (_, Some(all)) => (all.0.clone(), Some(Spread::Mirror)),
            (None, None) => (vec![self.number], None),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Ecc {
    /// Reed-Solomon, RS(136,128): any four of 128 rows, bursts of 3 KiB.
    Rs,
    /// None: data alone.
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum When {
    /// Before anybody gets them.
    Read,
    /// In the background alone.
    Scrub,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Keeps {
    /// Nothing.
    None,
    /// Pages that were read or written.
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
            .parse::<ByteSize>()
            .map(|rate| Scrub::Rate(rate.get()))
            .map_err(|error| error.to_string()),
    }
}

pub(super) fn mount(args: &MountArgs) -> Result<ExitCode> {
    match args.foreground {
        true => serve(args),
        false => detach(args),
    }
}

/// Starts a process that stays, and waits until it is ready.
fn detach(args: &MountArgs) -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    // Behind the command's name: what follows a lone dash is a directory.
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let name = words.iter().position(|word| word == "mount");
    let (before, behind) = words.split_at(name.map_or(0, |at| at + 1));
    pass_nothing_on().context("cannot start the process that stays")?;
    let mut child = Command::new(program)
        .args(before)
        .args(["--foreground", "--detached"])
        .args(behind)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process that stays")?;
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
            "cannot mount at {}: the process that stays was ended by signal {signal} as it started\ntry: dmesg, which says whether the kernel did so for want of memory",
            args.dir.display()
        );
    }
    // It has said why.
    Ok(ExitCode::from(
        status.code().map_or(1, |code| code.max(1) as u8),
    ))
}

/// Has what this process starts get none of the descriptors that its caller has left open: the one that stays would keep locks, and the
/// ends of pipes that somebody waits for, until it is unmounted.
fn pass_nothing_on() -> Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        if number > libc::STDERR_FILENO {
            #[expect(
                unsafe_code,
                reason = "others' descriptors are known by their numbers alone"
            )]
            // SAFETY: it was open just now, and nothing else here closes any meanwhile.
            let it = unsafe { BorrowedFd::borrow_raw(number) };
            rustix::io::fcntl_setfd(it, FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

/// Serves requests until it is unmounted.
fn serve(args: &MountArgs) -> Result<ExitCode> {
    let what = || format!("cannot mount at {}", args.dir.display());
    if args.detached {
        // It fails where this leads a session already, which is what is wanted.
        rustix::process::setsid().map(drop).unwrap_or_default();
    }
    let has_code = args.ecc == Ecc::Rs;
    let scrub = match args.scrub_rate {
        Some(_) if !has_code => bail!("--scrub-rate needs the code\ntry: without --ecc off"),
        None if !has_code => Scrub::Off,
        asked => asked.unwrap_or(Scrub::Share),
    };
    // Before anything is mounted: who sends one is heard.
    let signals = listen()?;
    let cuda = match args.device {
        Some(kind) => Cuda::select(kind.into()),
        None => Cuda::from_env(),
    };
    let cuda = cuda.with_context(what)?;
    let (numbers, spread) = args.devices();
    let devices = numbers.iter().map(|number| cuda.device(*number));
    let devices: Vec<Device> = devices.collect::<Result<_, _>>().with_context(what)?;
    let contexts = devices.iter().map(|device| Context::primary(*device));
    let contexts: Vec<Context> = contexts.collect::<Result<_, _>>().with_context(what)?;
    let threads = match args.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism().map_or(2, |it| it.get().clamp(2, THREADS)),
    };
    let verify = match (args.ecc, args.verify) {
        (Ecc::Off, Some(_)) => bail!("--verify needs the code\ntry: without --ecc off"),
        (_, Some(when)) => when,
        (_, None) if correct_themselves(&devices)? => When::Scrub,
        (_, None) => When::Read,
    };
    let shape = StoreGeometry {
        size_bytes: args.size.get(),
        has_code,
        verify: match verify {
            When::Read => Verify::Read,
            When::Scrub => Verify::Scrub,
        },
        threads,
    };
    let pages = args.size.get() / 4096;
    let mut options = MountOptions {
        inodes: args
            .inodes
            .unwrap_or_else(|| u32::try_from(pages.max(INODES)).unwrap_or(u32::MAX)),
        user: args.uid.unwrap_or_else(|| geteuid().as_raw()),
        group: args.gid.unwrap_or_else(|| getegid().as_raw()),
        mode: args.mode,
        allow_other: args.allow_other,
        cache: match args.cache {
            Keeps::None => PageCache::None,
            Keeps::Keep => PageCache::Keep,
        },
        threads,
        scrub,
        forbidden: Forbidden {
            suid: args.nosuid,
            dev: args.nodev,
            exec: args.noexec,
        },
        facts: facts(args, &devices, verify, threads)?,
    };
    // When its memory is there: who may lock a part only is refused what comes later.
    let mut lock = || {
        let is_locked = !cuda.is_software() && stay_in_memory();
        options.facts += &format!("locked {is_locked}\n");
        options.clone()
    };
    let mount = match spread {
        None => mount::store(&contexts[0], &shape, &kernels)
            .and_then(|store| Mount::new(store, &args.dir, &lock())),
        Some(spread) => mount::array(&contexts, spread, &shape, &kernels)
            .and_then(|store| Mount::new(store, &args.dir, &lock())),
    };
    let mount = mount.with_context(what)?;
    end_by_signal(signals, mount.place());
    if args.detached {
        // Who waited may have gone. This returns then, by which it is unmounted: nobody knows of it.
        tell(READY)?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        // Nobody waits for this process to leave the directory it was started in.
        std::env::set_current_dir("/")?;
    } else {
        tell(&format!("mounted at {}", mount.at().display()))?;
    }
    mount.wait()?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the kernels, compiled, to standard output: what the compiler leaves in memory goes with this process.
#[derive(clap::Args)]
pub(crate) struct KernelsArgs {
    /// For devices of this compute capability, as its two numbers.
    major: u32,
    minor: u32,
    /// To PTX; else to machine code if the compiler knows such devices.
    #[arg(long)]
    ptx: bool,
}

pub(super) fn write_kernels(args: &KernelsArgs) -> Result<ExitCode> {
    let code = Kernels::compile(Target {
        capability: (args.major, args.minor),
        is_text: args.ptx,
    })?;
    std::io::stdout().lock().write_all(&code)?;
    Ok(ExitCode::SUCCESS)
}

/// The kernels, compiled by a process of its own: tens of MiB that the compiler takes would be locked in memory as long as this is
/// mounted.
fn kernels(context: &Context) -> fercuda_vramfs::Result<Kernels> {
    let target = Target::of(context)?;
    let compile = || {
        // The very file that runs here, whatever has its name by now.
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
            #[expect(unsafe_code, reason = "only who compiled the code can vouch for it")]
            // SAFETY: this very program wrote it, which compiled it just now, and nobody else writes there.
            unsafe {
                Kernels::of(context, &code)
            }
        }
        // It is done here, or fails with its reason.
        None => Kernels::load(context),
    }
}

/// Writes a line to standard output. Unlike [`say!`] it does not end the process, which would leave a dead mount.
fn tell(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let told = writeln!(out, "{line}").and_then(|()| out.flush());
    told.context("cannot tell that it is mounted, so it is unmounted again")
}

/// What it says of itself when it is asked, beside figures.
fn facts(args: &MountArgs, devices: &[Device], verify: When, threads: usize) -> Result<String> {
    let ecc = match (args.ecc, verify) {
        (Ecc::Off, _) => ["off", "never"],
        (Ecc::Rs, When::Read) => ["rs", "read"],
        (Ecc::Rs, When::Scrub) => ["rs", "scrub"],
    };
    let cache = match args.cache {
        Keeps::None => "none",
        Keeps::Keep => "keep",
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
        Some(Spread::Stripe) => format!("array stripe\ndevice_numbers {}\n", numbers.join(",")),
        Some(Spread::Mirror) => format!("array mirror\ndevice_numbers {}\n", numbers.join(",")),
    };
    // Who waits for its end is told where its number is one.
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

/// Whether the memory of all devices has a code of its own.
fn correct_themselves(devices: &[Device]) -> Result<bool> {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_ECC_ENABLED;
    for device in devices {
        if device.attribute(attribute)? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Keeps this process's memory where it is, as far as it is used: who swaps to files here would wait for itself. Where only
/// a part may be locked none is: what comes later would be refused its memory. Nor is memory for it found by writing to
/// what it serves, and it is not ended to find some: what it holds is others' data.
fn stay_in_memory() -> bool {
    if geteuid().is_root() {
        // It needs more than root where there are capabilities; without it all else is as it was.
        configure_io_flusher_behavior(true).unwrap_or_default();
        std::fs::write("/proc/self/oom_score_adj", "-1000").unwrap_or_default();
    }
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the C library's own housekeeping")]
    // SAFETY: it gives memory back that nothing uses: what starting up has freed would be locked as well.
    unsafe {
        libc::malloc_trim(0);
    }
    let may = geteuid().is_root() || getrlimit(Resource::Memlock).current.is_none();
    let how = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    may && rustix::mm::mlockall(how).is_ok()
}

/// A byte comes by it for each signal to end.
fn listen() -> Result<UnixStream> {
    let (hear, tell) = UnixStream::pair()?;
    for number in [SIGTERM, SIGINT, SIGHUP] {
        if !is_ignored(number) {
            signal_hook::low_level::pipe::register(number, tell.try_clone()?)
                .context("cannot listen for signals")?;
        }
    }
    Ok(hear)
}

/// Unmounts when a signal comes; ends this process at the second one, if that is in use.
fn end_by_signal(mut signals: UnixStream, place: Place) {
    std::thread::spawn(move || {
        let mut byte = [0];
        let mut was_asked = false;
        while signals.read_exact(&mut byte).is_ok() {
            if was_asked {
                // Whoever still has a file gets an error from now on.
                std::process::exit(1);
            }
            was_asked = true;
            let gone = place.unmount(false).or_else(|in_use| {
                // Before anything is said: that may wait for who reads it.
                place.unmount(true).inspect(|_| {
                    note!("{in_use}\nit vanishes, and ends when nobody uses it any more");
                })
            });
            match gone {
                Ok(true) => {}
                Ok(false) => note!(
                    "it is not on top where it was mounted: it ends when nobody uses it any more, or at the next signal"
                ),
                Err(error) => note!("{error}"),
            }
        }
    });
}
