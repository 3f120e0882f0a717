//! `fercuda vram`: files in device memory, mounted, looked at and unmounted.
//!
//! A mount is a process: this one in the foreground, else one that it starts and waits for until files can be used. It ends
//! when it is unmounted, which a signal to end asks for too.
//!
//! Invariant: whoever gets status 0 from `mount` has it mounted.
//! Elsewhere: what is mounted, and how requests are answered (`fercuda-vramfs`).

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_cuda::sys::types::CUdevice_attribute;
use fercuda_cuda::{Context, Cuda, Device};
use fercuda_governor::Bytes;
use fercuda_vramfs::medium::Verify;
use fercuda_vramfs::mount::{self, Cache, Mount, Options, Place, Shape};
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, getegid, geteuid, getrlimit};
use serde_json::{Map, Value};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::out::say;
use crate::run::DeviceKind;
use crate::run::child::is_ignored;
use crate::terminal::bytes;

/// What a daemon says when files can be used.
const READY: &str = "ready";
/// Requests that are answered at a time, at most, unless more are asked for.
const THREADS: usize = 16;
/// Inodes that there can be at least, unless fewer are asked for.
const INODES: u64 = 1 << 20;

/// Files in device memory, corrected by the device.
#[derive(clap::Args)]
#[command(after_help = "\
What is in it is gone when it is unmounted, when its process ends, and when the
device fails. It is for scratch files, not for what you want to keep.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Mount(Box<MountArgs>),
    Umount(UmountArgs),
    Df(Shown),
    Stat(Shown),
}

/// Mounts an empty filesystem in device memory at an empty directory.
#[derive(clap::Args)]
#[command(after_help = "\
Returns when files can be used; a process stays behind, and ends when it is
unmounted. With --foreground it is this one. SIGTERM, SIGINT and SIGHUP unmount
it; while somebody has a file open there it vanishes, and ends after the last.

With --ecc rs each 128 KiB of data take 137 KiB of the device, and --verify read
compares what is read with its sums before anybody gets it. With --verify scrub
that is done in the background, a twentieth of the time. The default is scrub on
a device with ECC of its own, and read on others.

Root, or fusermount3, is needed to mount; root, to let others in by default.

Exit status: 0 when it is mounted (in the foreground: when it is unmounted), 1
when that failed.

Examples:
  fercuda vram mount /mnt/vram --size 8GiB
  fercuda vram mount scratch --size 256MiB --device soft --foreground
  fercuda vram df; fercuda vram stat /mnt/vram; fercuda vram umount /mnt/vram")]
struct MountArgs {
    /// The directory, without entries.
    dir: PathBuf,
    /// Room for data, such as 8GiB.
    #[arg(long, value_name = "BYTES")]
    size: Bytes,
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
    /// Requests that are answered at a time [default: as many as there are
    /// processors, 2 to 16].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Stay here until it is unmounted.
    #[arg(long)]
    foreground: bool,
    /// Started by this program: says when it is ready, and then nothing.
    #[arg(long, hide = true)]
    detached: bool,
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
    /// In the background.
    Scrub,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Keeps {
    /// Nothing.
    None,
    /// Pages that were read or written.
    Keep,
}

/// Takes it away, with all that is in it.
#[derive(clap::Args)]
struct UmountArgs {
    /// Where it is mounted.
    dir: PathBuf,
    /// Also while it is in use: it vanishes now, and ends with its last user.
    #[arg(long)]
    lazy: bool,
}

/// How much is used, or what it is and what went wrong so far.
#[derive(clap::Args)]
struct Shown {
    /// Where it is mounted [default: everywhere].
    dirs: Vec<PathBuf>,
    /// Print a JSON array of objects instead of text.
    #[arg(long)]
    json: bool,
}

fn octal(text: &str) -> Result<u32, String> {
    let value = u32::from_str_radix(text, 8).ok().filter(|it| *it <= 0o7777);
    value.ok_or_else(|| "not an octal number up to 7777".to_owned())
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Mount(args) if args.foreground => serve(args),
        What::Mount(args) => detach(args),
        What::Umount(args) => umount(args),
        What::Df(args) => df(args),
        What::Stat(args) => stat(args),
    }
}

/// Starts a process that stays, and waits until it is ready.
fn detach(args: &MountArgs) -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .args(["--foreground", "--detached"])
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
    // It has said why.
    let status = child.wait()?;
    Ok(ExitCode::from(
        status.code().map_or(1, |code| code.max(1) as u8),
    ))
}

/// Serves requests until it is unmounted.
fn serve(args: &MountArgs) -> Result<ExitCode> {
    let what = || format!("cannot mount at {}", args.dir.display());
    if args.detached {
        // It fails where this leads a session already, which is what is wanted.
        rustix::process::setsid().map(drop).unwrap_or_default();
    }
    // Before anything is mounted: who sends one is heard.
    let signals = listen()?;
    let cuda = match args.device {
        Some(kind) => Cuda::select(kind.into()),
        None => Cuda::from_env(),
    };
    let device = cuda
        .and_then(|cuda| cuda.device(args.number))
        .with_context(what)?;
    let context = Context::primary(device).with_context(what)?;
    let threads = match args.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism().map_or(2, |it| it.get().clamp(2, THREADS)),
    };
    let verify = match (args.ecc, args.verify) {
        (Ecc::Off, Some(_)) => bail!("--verify needs the code\ntry: without --ecc off"),
        (_, Some(when)) => when,
        (_, None) if corrects_itself(&device)? => When::Scrub,
        (_, None) => When::Read,
    };
    let shape = Shape {
        size_bytes: args.size.get(),
        has_code: args.ecc == Ecc::Rs,
        verify: match verify {
            When::Read => Verify::Read,
            When::Scrub => Verify::Scrub,
        },
        threads,
    };
    let store = mount::store(&context, &shape).with_context(what)?;
    let is_locked = !device.cuda().is_software() && lock_memory();
    let pages = args.size.get() / 4096;
    let options = Options {
        inodes: args
            .inodes
            .unwrap_or_else(|| u32::try_from(pages.max(INODES)).unwrap_or(u32::MAX)),
        user: args.uid.unwrap_or_else(|| geteuid().as_raw()),
        group: args.gid.unwrap_or_else(|| getegid().as_raw()),
        mode: args.mode,
        allow_other: args.allow_other,
        cache: match args.cache {
            Keeps::None => Cache::None,
            Keeps::Keep => Cache::Keep,
        },
        threads,
        scrubs: shape.has_code && verify == When::Scrub,
        facts: facts(args, &device, verify, threads, is_locked)?,
    };
    let mount = Mount::new(store, &args.dir, &options).with_context(what)?;
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

/// Writes a line to standard output. Unlike [`say!`] it does not end the process, which would leave a dead mount.
fn tell(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let told = writeln!(out, "{line}").and_then(|()| out.flush());
    told.context("cannot tell that it is mounted, so it is unmounted again")
}

/// What it says of itself when it is asked, beside figures.
fn facts(
    args: &MountArgs,
    device: &Device,
    verify: When,
    threads: usize,
    is_locked: bool,
) -> Result<String> {
    let ecc = match (args.ecc, verify) {
        (Ecc::Off, _) => ["off", "never"],
        (Ecc::Rs, When::Read) => ["rs", "read"],
        (Ecc::Rs, When::Scrub) => ["rs", "scrub"],
    };
    let cache = match args.cache {
        Keeps::None => "none",
        Keeps::Keep => "keep",
    };
    Ok(format!(
        "device {}\necc {}\nverify {}\ncache {cache}\nthreads {threads}\nlocked {is_locked}\npid {}\n",
        device.name()?,
        ecc[0],
        ecc[1],
        std::process::id(),
    ))
}

/// Whether the device's memory has a code of its own.
fn corrects_itself(device: &Device) -> Result<bool> {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_ECC_ENABLED;
    Ok(device.attribute(attribute)? != 0)
}

/// Keeps this process's memory where it is, as far as it is used: who swaps to files here would wait for itself. Where only
/// a part may be locked none is: what comes later would be refused its memory.
fn lock_memory() -> bool {
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
            let gone = place.unmount(false).or_else(|error| {
                eprintln!("{error}\nit vanishes, and ends when nobody uses it any more");
                place.unmount(true)
            });
            match gone {
                Ok(true) => {}
                Ok(false) => eprintln!(
                    "it is not on top where it was mounted: it ends when nobody uses it any more, or at the next signal"
                ),
                Err(error) => eprintln!("{error}"),
            }
        }
    });
}

/// Where it is, also if what is mounted there answers no more.
fn place(dir: &Path) -> Result<PathBuf> {
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let place = match dir.file_name() {
        Some(name) if !dir.is_symlink() => parent.canonicalize().map(|it| it.join(name)),
        _ => dir.canonicalize(),
    };
    place.with_context(|| format!("cannot find {}", dir.display()))
}

fn umount(args: &UmountArgs) -> Result<ExitCode> {
    let what = || format!("cannot unmount {}", args.dir.display());
    let place = place(&args.dir).with_context(what)?;
    match mount::mounted(&place).with_context(what)? {
        None => Err(anyhow!("nothing is mounted there")).with_context(what)?,
        Some(it) if !it.is_ours() => {
            let other = anyhow!("it is {}, of type {}\ntry: umount", it.source, it.kind);
            Err(other).with_context(what)?;
        }
        Some(_) => mount::unmount(&place, args.lazy).with_context(what)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What each says of itself, by name.
fn told(args: &Shown) -> Result<Vec<Map<String, Value>>> {
    let dirs = match args.dirs.is_empty() {
        true => mount::all()?,
        false => args.dirs.clone(),
    };
    let of = |dir: &PathBuf| {
        let text =
            mount::figures(dir).with_context(|| format!("cannot look at {}", dir.display()))?;
        let mut all = Map::new();
        all.insert("dir".to_owned(), dir.display().to_string().into());
        for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let value = match value.parse::<u64>() {
                Ok(number) => number.into(),
                Err(_) => value.into(),
            };
            all.insert(name.to_owned(), value);
        }
        Ok(all)
    };
    dirs.iter().map(of).collect()
}

fn shown(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn stat(args: &Shown) -> Result<ExitCode> {
    let all = told(args)?;
    if args.json {
        say!("{}", serde_json::to_string(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    for one in &all {
        for (name, value) in one {
            say!("{:<18} {}", name.replace('_', " "), shown(value));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn df(args: &Shown) -> Result<ExitCode> {
    let all = told(args)?;
    if args.json {
        let names = ["dir", "size_bytes", "used_bytes", "inodes", "used_inodes"];
        let part = |one: &Map<String, Value>| {
            let one = one
                .iter()
                .filter(|(name, _)| names.contains(&name.as_str()));
            one.map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        let all: Vec<Map<String, Value>> = all.iter().map(part).collect();
        say!("{}", serde_json::to_string(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    say!(
        "{:>10} {:>10} {:>10} {:>10} {:>10}  mounted at",
        "size",
        "used",
        "free",
        "inodes",
        "used"
    );
    for one in &all {
        let figure = |name: &str| one.get(name).and_then(Value::as_u64).unwrap_or(0);
        let (size, used) = (figure("size_bytes"), figure("used_bytes"));
        say!(
            "{:>10} {:>10} {:>10} {:>10} {:>10}  {}",
            bytes(size),
            bytes(used),
            bytes(size.saturating_sub(used)),
            figure("inodes"),
            figure("used_inodes"),
            one.get("dir").map(shown).unwrap_or_default()
        );
    }
    Ok(ExitCode::SUCCESS)
}
