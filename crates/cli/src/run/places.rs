//! Locations of the libraries that a governed program loads: beside `fercuda`.
//!
//! Invariant: a file found here can be changed by those alone that could change the program, also
//! where the program stands in a folder that all users may write to, such as `/tmp`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use fercuda_cuda::Select;
use fercuda_cuda_sys::{Driver, DriverOrigin};
use fercuda_nvrtc::find::check_trusted_as;

/// The library that is preloaded.
const HOOK: &str = "libfercuda_hook.so";
/// The software device as a driver library.
const SOFT: &str = "libcuda.so";
/// The CUDA runtime API over the driver's, for programs of `nvcc -cudart shared`.
const CUDA_RUNTIME: &str = "libcudart.so";
/// Our runtime as a library that any process can load.
const GUEST: &str = "libfercuda_guest.so";
/// Device files that indicate a GPU: NVIDIA's control device, its name on a Tegra, and Windows'
/// under WSL.
const GPU_SIGNS: [&str; 3] = ["/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg"];

/// Which driver to use, directly or below the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeviceKind {
    /// A GPU if the machine has one, else the software device
    Auto,
    /// NVIDIA's driver
    Gpu,
    /// The software device
    Soft,
}

impl From<DeviceKind> for Select {
    fn from(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Auto => Self::Auto,
            DeviceKind::Gpu => Self::Hardware,
            DeviceKind::Soft => Self::Software,
        }
    }
}

impl DeviceKind {
    /// The device that `FERCUDA_DEVICE` selects.
    pub(crate) fn from_env() -> fercuda_cuda::Result<Self> {
        Ok(match Select::from_env()? {
            Select::Auto => Self::Auto,
            Select::Hardware => Self::Gpu,
            Select::Software => Self::Soft,
        })
    }
}

/// Folders that may contain the libraries.
pub(crate) struct LibraryFolders {
    /// This program, without links on the way.
    program: PathBuf,
    folders: Vec<PathBuf>,
}

impl LibraryFolders {
    /// Folders beside this program: cargo's output folder, or an installation.
    pub(crate) fn of_this_program() -> Result<LibraryFolders> {
        let program =
            std::env::current_exe().context("cannot find the path of the fercuda executable")?;
        // The program may be started through a link in a folder of PATH.
        let program = program.canonicalize().unwrap_or(program);
        let beside = program.parent().unwrap_or(Path::new("/"));
        let mut folders = vec![beside.to_owned(), beside.join("../lib/fercuda")];
        // In cargo's output folder `deps` has the newest version while a build runs: only the
        // targets that were requested by name are copied out of it.
        if beside.join(".fingerprint").is_dir() {
            folders.insert(0, beside.join("deps"));
        }
        Ok(LibraryFolders { program, folders })
    }

    /// The hook.
    pub(crate) fn hook(&self) -> Result<PathBuf> {
        preloadable(self.find(HOOK)?)
    }

    /// The library to preload so that `kind` is the driver of a program without the hook; `None` if
    /// the loader finds that driver by itself.
    pub(crate) fn ungoverned_driver(&self, kind: DeviceKind) -> Result<Option<PathBuf>> {
        let soft = self.find(SOFT).ok();
        let driver = self.driver(kind)?;
        let is_ours = driver == soft;
        driver.filter(|_| is_ours).map(preloadable).transpose()
    }

    /// The driver for `kind`; `None` to leave it to the hook to report that there is none.
    pub(crate) fn driver(&self, kind: DeviceKind) -> Result<Option<PathBuf>> {
        let soft = || self.find(SOFT);
        match kind {
            DeviceKind::Soft => soft().map(Some),
            DeviceKind::Gpu => installed().map(Some),
            // The driver is not initialised to find out: the program may need none.
            DeviceKind::Auto if GPU_SIGNS.iter().any(|sign| Path::new(sign).exists()) => {
                installed().map(Some)
            }
            DeviceKind::Auto => Ok(soft().ok()),
        }
    }

    /// The CUDA runtime library to preload where the driver is the software device, over which
    /// NVIDIA's does not run; `None` if it is not installed, or the driver is another.
    pub(crate) fn cuda_runtime(&self, driver: &Path) -> Result<Option<PathBuf>> {
        let is_soft = self.find(SOFT).is_ok_and(|soft| soft == driver);
        let runtime = self.find(CUDA_RUNTIME).ok().filter(|_| is_soft);
        runtime.map(preloadable).transpose()
    }

    /// Our runtime, for any process.
    pub(crate) fn guest(&self) -> Result<PathBuf> {
        self.find(GUEST)
    }

    /// PTX of the filesystem's kernels, which a release has and a build has not.
    pub(crate) fn shipped_kernels(&self) -> Option<PathBuf> {
        let name = fercuda_vramfs::SHIPPED_KERNELS;
        let mut files = self.folders.iter().map(|folder| folder.join(name));
        files.find(|file| file.is_file() && check_trusted_as(&self.program, file).is_ok())
    }

    /// Finds a library of ours.
    fn find(&self, name: &str) -> Result<PathBuf> {
        let mut tried = String::new();
        for folder in &self.folders {
            let path = folder.join(name);
            let Ok(resolved) = path.canonicalize() else {
                tried.push_str(&format!("\n  not at {}", path.display()));
                continue;
            };
            // The links on the way are checked too, which others could point elsewhere.
            match check_trusted_as(&self.program, &path) {
                Ok(()) => return Ok(resolved),
                Err(untrusted) => tried.push_str(&format!(
                    "\n  not {}, which another user could have changed: {untrusted}",
                    path.display()
                )),
            }
        }
        bail!(
            "cannot find {name}, which is installed beside fercuda{tried}\n\
             try: cargo xtask dist, in a checkout of feRcuda, which builds a folder with all files \
             (cargo install leaves libraries out)"
        )
    }
}

/// A library whose path LD_PRELOAD can have: the loader splits it at some characters, and has no
/// quoting.
fn preloadable(path: PathBuf) -> Result<PathBuf> {
    let text = path.as_os_str().as_encoded_bytes();
    if text.iter().any(|byte| b" \t:$".contains(byte)) {
        bail!(
            "the loader cannot preload {}: its path has a blank, a colon or a dollar sign\n\
             try: move fercuda and its libraries to a folder without such characters",
            path.display()
        );
    }
    Ok(path)
}

/// NVIDIA's library, as the loader finds it.
fn installed() -> Result<PathBuf> {
    let driver = Driver::open()?;
    match driver.origin() {
        DriverOrigin::Library(path) if path.is_absolute() => Ok(path.clone()),
        origin => bail!(
            "the loader does not report the path of {origin}\ntry: FERCUDA_DRIVER=/path/of/libcuda.so.1"
        ),
    }
}
