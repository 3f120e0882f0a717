//! Installation of the program and its libraries, where they find each
//! other: `bin` and `lib/fercuda` of one folder, as under `/usr/local`; and what C
//! programs need into `lib` and `include`; manual pages and completion scripts into `share`.
//!
//! Invariant: what is there afterwards was tried there, where nothing of the
//! build can be found in its stead. Elsewhere: the hook's profile (`profile`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::profile::Hook;
use crate::{cargo, headers, profile, setup, shell};

/// Libraries by package, and the file of each.
const LIBRARIES: [(&str, &str); 4] = [
    ("hook", "libfercuda_hook.so"),
    ("dropin", "libcuda.so"),
    ("cudart", "libcudart.so"),
    ("guest", "libfercuda_guest.so"),
];

/// The library for C programs, which is no part of the program's own.
const FOR_C: (&str, &str) = ("capi", "lib/libfercuda.so");

/// The filesystem's kernels, as the program looks for them beside the libraries.
const KERNELS: &str = "vramfs.ptx";

/// The program's place in the folder.
const PROGRAM: &str = "bin/fercuda";

/// A link to the program, by which the commands of `vram` are its own.
const FILESYSTEM: &str = "bin/vramfs";

/// Shells, and where each looks for its script, below `share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/fercuda"),
    ("zsh", "zsh/site-functions/_fercuda"),
    ("fish", "fish/vendor_completions.d/fercuda.fish"),
];

/// What belongs together.
pub(crate) struct Parts {
    /// Each file, with its place in the folder.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Likewise what C programs need, and the program does not.
    pub for_c: Vec<(PathBuf, PathBuf)>,
    /// Whether the hook is built by a profile, and kernels are shipped, as sentences.
    pub notes: Vec<String>,
}

/// Compilers of the kernels that are shipped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelCompiler {
    /// NVRTC of `cargo xtask setup`, which is run first.
    OfSetUp,
    /// NVRTC where the program finds one; without one no kernels are shipped.
    IfFound,
}

/// Builds, copies and tries it. `profiled`: the hook by a profile.
pub(crate) fn run(out: &Path, profiled: bool) -> Result<()> {
    let out = shell::root().join(out);
    let parts = parts(profiled)?;
    for (built, place) in parts.files.iter().chain(&parts.for_c) {
        put(built, &out.join(place))?;
    }
    let program = out.join(PROGRAM);
    let link = out.join(FILESYSTEM);
    if link.is_symlink() {
        fs::remove_file(&link).with_context(|| format!("cannot replace {}", link.display()))?;
    }
    let name = program.file_name().context("a program has a name")?;
    std::os::unix::fs::symlink(name, &link)
        .with_context(|| format!("cannot create {}", link.display()))?;
    write_pages_and_completions(&program, &out.join("share"))?;
    let mut demo = shell::command(&program);
    demo.arg("demo");
    shell::run(demo).context("it was put there, and its demo fails")?;
    try_from_c(&out)?;
    println!("\n{}", parts.notes.join("\n"));
    println!("written: {} and what it needs", program.display());
    Ok(())
}

/// Builds what belongs together.
pub(crate) fn parts(profiled: bool) -> Result<Parts> {
    parts_by(cargo::command("build"), profiled, KernelCompiler::IfFound)
}

/// The same by a `cargo build` that has options of its own, which the hook by a profile
/// does without.
pub(crate) fn parts_by(
    mut build: Command,
    profiled: bool,
    compiler: KernelCompiler,
) -> Result<Parts> {
    build.args(["--locked", "--release"]);
    build.args(["--package", "fercuda-cli", "--package", "fercuda-capi"]);
    let made = cargo::artifacts_of(build)?;
    let mut programs = made.iter().filter(|it| it.package == "cli");
    let program = programs.find_map(|it| it.executable.clone());
    let program = program.context("fercuda-cli built no program")?;
    let hook = match profiled {
        true => profile::hook(cargo::library(&made, "dropin")?)?,
        false => Hook::Without("as was asked for".to_owned()),
    };
    let (kernels, of_kernels) = kernels(&program, compiler)?;
    let mut files = vec![(program, PathBuf::from(PROGRAM))];
    files.extend(kernels);
    for (package, name) in LIBRARIES {
        let library = match &hook {
            Hook::Profiled(hook) if package == "hook" => hook,
            _ => cargo::library(&made, package)?,
        };
        files.push((library.to_owned(), Path::new("lib/fercuda").join(name)));
    }
    let (package, place) = FOR_C;
    let mut for_c = vec![(cargo::library(&made, package)?.to_owned(), place.into())];
    for header in headers::generate()?.into_keys() {
        for_c.push((shell::root().join(&header), header.into()));
    }
    let profile = match hook {
        Hook::Profiled(_) => "the hook is built by a profile".to_owned(),
        Hook::Without(reason) => format!(
            "the hook is built WITHOUT a profile, and takes about half as long again\n  {reason}"
        ),
    };
    Ok(Parts {
        files,
        for_c,
        notes: vec![profile, of_kernels],
    })
}

/// Has the program compile the filesystem's kernels, so that a mount needs no NVRTC: the file and
/// its place, and a sentence about it.
fn kernels(
    program: &Path,
    compiler: KernelCompiler,
) -> Result<(Option<(PathBuf, PathBuf)>, String)> {
    let file = shell::root().join("target/dist-kernels").join(KERNELS);
    let folder = file.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder)?;
    let mut compile = shell::command(program);
    // The oldest architecture that they run on; later ones take its PTX.
    compile.args(["vram", "kernels", "8", "0", "--ptx", "--ship"]);
    compile.arg(&file);
    if compiler == KernelCompiler::OfSetUp {
        compile.env("FERCUDA_WHEELS", setup::run(false)?.wheels);
    }
    let place = Path::new("lib/fercuda").join(KERNELS);
    match shell::run(compile) {
        Ok(()) => Ok((Some((file, place)), "kernels are shipped".to_owned())),
        Err(error) if compiler == KernelCompiler::OfSetUp => Err(error),
        Err(_) => Ok((
            None,
            "no kernels are shipped, as NVRTC was not found: `vram mount` compiles them\n\
             try: cargo xtask setup"
                .to_owned(),
        )),
    }
}

/// The program writes its manual pages, and a completion script for each shell that reads a folder.
fn write_pages_and_completions(program: &Path, share: &Path) -> Result<()> {
    let mut pages = shell::command(program);
    pages.args(["--quiet", "man", "--force", "--out"]);
    pages.arg(share.join("man/man1"));
    shell::run(pages).context("its manual pages cannot be written")?;
    for (name, place) in COMPLETIONS {
        let mut script = shell::command(program);
        script.args(["completions", name]);
        let script = shell::capture(script)?;
        let file = share.join(place);
        let folder = file.parent().context("a file is in a folder")?;
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&file, script))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Compiles and runs a C program with what was put there and nothing else.
fn try_from_c(out: &Path) -> Result<()> {
    let program = out.join(format!("vector_add-{}", std::process::id()));
    let mut compiler = shell::command("cc");
    compiler.arg(shell::root().join("examples/c/vector_add.c"));
    compiler.arg("-I").arg(out.join("include"));
    compiler.arg("-L").arg(out.join("lib")).arg("-lfercuda");
    compiler.arg("-o").arg(&program);
    let done = shell::run(compiler).and_then(|()| {
        let mut run = shell::command(&program);
        run.env("LD_LIBRARY_PATH", out.join("lib"));
        shell::run(run)
    });
    // Where it was not made there is nothing to remove.
    drop(fs::remove_file(&program));
    done.context("it was put there, and a C program with it fails")
}

/// A copy in place of an older one at once: that may be running.
fn put(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file is in a folder")?;
    let draft = to.with_extension(format!("draft-{}", std::process::id()));
    fs::create_dir_all(folder)
        .and_then(|()| fs::copy(from, &draft).map(drop))
        .and_then(|()| fs::rename(&draft, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
