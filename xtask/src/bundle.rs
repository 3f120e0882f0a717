//! A folder, and an archive of it, to carry to a machine that has a GPU and no Rust.
//!
//! Holds the optimised test, bench and example programs, the `fercuda` program, the
//! drop-in library, the kernels as text, the foreign clients, filesystem suites, and one script,
//! `run.sh OUTPUT_DIR [STEPS]`, that runs all of it, or the steps whose names a regular
//! expression finds, and leaves a table and logs.
//!
//! Invariant: under 64 MiB when packed, and nothing of NVIDIA's inside. Binaries run where
//! glibc is no older than on the machine that built them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::{cargo, clients, dist, python, rust_tenants, setup, shell, suites};

const LIMIT_BYTES: u64 = 64 << 20;

/// Packages whose tests speak to a device; those of the others need none.
const ON_A_DEVICE: [&str; 4] = ["cuda", "jit", "runtime", "testkit"];

/// And these of packages that have others.
const OF_OTHERS: [(&str, &str); 2] = [("vramfs", "codes"), ("vramfs", "patterns")];

/// The decoder that `patterns` asks, a file of its own in the Python that has what tests need.
const DECODER: &str = "reedsolo.py";

/// Examples that measure or try something on a device, with what they are given.
const EXAMPLES: [(&str, &str, &str); 6] = [
    ("cuda", "waits", ""),
    ("jit", "expressions", ""),
    ("dispatcher", "dispatcher", ""),
    ("runtime", "graphs", "replays=1000000 workers=4 seconds=280"),
    ("runtime", "reboot", "1000"),
    ("vramfs", "codes", "65536"),
];

/// What needs a mount, which the script makes.
const EXPORT: (&str, &str, &str) = ("vramfs", "export", "");

/// Tests of testkit that read its sources; `fercuda-filetest` carries them.
const NEED_SOURCES: [&str; 3] = ["corpus", "headers", "planted"];

/// Builds everything and fills `out`.
pub(crate) fn run(out: &Path, profiled: bool) -> Result<()> {
    let venv = setup::run(false)?;
    let root = shell::root();
    let out = root.join(out);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    for folder in [
        "bin",
        "lib/fercuda",
        "tests",
        "benches",
        "examples",
        "dropin",
        "files",
    ] {
        fs::create_dir_all(out.join(folder))?;
    }

    shell::step("building, optimised");
    let tests = cargo::artifacts(
        "test",
        &["--locked", "--workspace", "--release", "--no-run"],
    )?;
    let benches = cargo::artifacts(
        "bench",
        &["--locked", "--workspace", "--benches", "--no-run"],
    )?;
    let programs = cargo::artifacts("build", &["--locked", "--release", "--workspace", "--bins"])?;
    let examples = cargo::artifacts(
        "build",
        &["--locked", "--release", "--workspace", "--examples"],
    )?;
    let drop_in = clients::build_drop_in("release")?;

    let mut script = Script::default();
    for made in &tests {
        if let Some(program) = made.executable.as_ref().filter(|_| made.is_test)
            && (ON_A_DEVICE.contains(&made.package.as_str())
                || OF_OTHERS.contains(&(made.package.as_str(), made.target.as_str())))
            && !NEED_SOURCES.contains(&made.target.as_str())
        {
            let name = format!("{}-{}", made.package, made.target);
            carry(program, &out.join("tests").join(&name))?;
            script.tests.push((made.package.clone(), name));
        }
    }
    for made in &benches {
        if let Some(program) = &made.executable
            && made.kinds.iter().any(|kind| kind == "bench")
        {
            let name = format!("{}-{}", made.package, made.target);
            carry(program, &out.join("benches").join(&name))?;
            script.benches.push((made.package.clone(), name));
        }
    }
    for (package, target, given) in EXAMPLES.into_iter().chain([EXPORT]) {
        let is_it = |made: &&cargo::Artifact| {
            made.package == package
                && made.target == target
                && made.kinds.iter().any(|kind| kind == "example")
        };
        let made = examples.iter().find(is_it);
        let program = made.and_then(|made| made.executable.as_ref());
        let program = program.with_context(|| format!("{package} has no example {target}"))?;
        let name = format!("{package}-{target}");
        carry(program, &out.join("examples").join(&name))?;
        if (package, target, given) != EXPORT {
            script.examples.push((package.to_owned(), name, given));
        }
    }
    for made in &programs {
        if let Some(program) = &made.executable
            && made.package != "cli"
        {
            // Of ours it runs the filesystem suites there.
            let name = match made.package.as_str() {
                "xtask" => "xtask",
                _ => &made.target,
            };
            carry(program, &out.join("bin").join(name))?;
        }
    }
    suites::carry(&out.join("suites"), carry)?;
    let tenants = out.join("rust-tenants");
    fs::create_dir_all(&tenants)?;
    carry(&rust_tenants::cudarc()?, &tenants.join("cudarc-tenant"))?;
    // Its kernels need NVIDIA's compiler: without it the bundle has one program less.
    let without_candle = match rust_tenants::candle(&venv, &clients::cudarc_source()?.1) {
        Ok(program) => {
            carry(&program, &tenants.join("candle-tenant"))?;
            None
        }
        Err(error) => Some(format!("WITHOUT a program over candle: {error:#}")),
    };
    carry(
        &drop_in.join("libcuda.so.1"),
        &out.join("dropin/libcuda.so.1"),
    )?;
    let parts = dist::parts(profiled)?;
    for (built, place) in &parts.files {
        carry(built, &out.join(place))?;
    }
    copy_tracked(&root, &out.join("files"))?;
    python::bundle(&out)?;
    let packages = venv
        .wheels
        .parent()
        .context("NVIDIA's wheels lie in no folder")?;
    fs::create_dir_all(out.join("decoder"))?;
    fs::copy(packages.join(DECODER), out.join("decoder").join(DECODER))
        .with_context(|| format!("cannot copy {DECODER} from {}", packages.display()))?;

    let listings = out.join("listings");
    fs::create_dir_all(&listings)?;
    let mut list = cargo::command("run");
    list.args([
        "--locked",
        "--release",
        "--package",
        "fercuda-testkit",
        "--example",
        "listings",
        "--",
    ])
    .arg(&listings);
    shell::run(list)?;

    shell::step("the corpus: PTX, and what the software device makes of it");
    let mut corpus = shell::command(out.join("bin/fercuda-filetest"));
    corpus.arg("bundle").arg(out.join("corpus"));
    crate::setup::environment(&mut corpus, &venv);
    corpus
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "0");
    shell::run(corpus)?;

    fs::write(out.join("commit"), commit()?)?;
    let run = out.join("run.sh");
    fs::write(&run, script.text())?;
    make_runnable(&run)?;

    shell::step("packing");
    let archive = out.with_extension("tar.xz");
    let mut pack = shell::command("tar");
    // The programs are much alike: a window that sees several of them makes a fifth of it.
    pack.env("XZ_OPT", "-3 --threads=1 --lzma2=preset=3,dict=256MiB");
    pack.arg("--create").arg("--xz").arg("--file").arg(&archive);
    pack.arg("--directory").arg(&out).arg(".");
    shell::run(pack)?;
    let size_bytes = fs::metadata(&archive)?.len();
    if let Some(note) = without_candle {
        println!("\n{note}");
    }
    println!(
        "\n{}\n{}: {:.1} MiB; {} test programs, {} benches\n\
         run there: tar xJf {} -C FOLDER && FOLDER/run.sh OUTPUT_DIR",
        parts.notes.join("\n"),
        archive.display(),
        size_bytes as f64 / f64::from(1 << 20),
        script.tests.len(),
        script.benches.len(),
        archive.file_name().unwrap_or_default().display(),
    );
    if size_bytes > LIMIT_BYTES {
        bail!(
            "the bundle has {size_bytes} bytes; the limit is {LIMIT_BYTES}\ntry: fewer test programs, \
             or less debug information in [profile.release]"
        );
    }
    Ok(())
}

/// The commit that was built, for what is recorded there.
fn commit() -> Result<String> {
    let ask = |words: &[&str]| {
        let mut git = shell::command("git");
        git.args(words);
        shell::capture(git)
    };
    let head = ask(&["rev-parse", "HEAD"])?.trim().to_owned();
    let changed = ask(&["status", "--porcelain", "--untracked-files=no"])?;
    Ok(match changed.is_empty() {
        true => head,
        false => format!("{head} and changes"),
    })
}

/// Copies a program without its symbols.
fn carry(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    let stripped = Command::new("strip")
        .arg(to)
        .stderr(Stdio::inherit())
        .status()
        .context("cannot start `strip`\ntry: install binutils")?;
    if !stripped.success() {
        bail!("`strip {}` failed: {stripped}", to.display());
    }
    Ok(())
}

/// What the test programs read at run time: the files git knows, sources of
/// Rust and documents apart.
fn copy_tracked(root: &Path, to: &Path) -> Result<()> {
    let mut list = shell::command("git");
    list.args(["ls-files", "-z", "crates", "tests"]);
    list.args(["python/tests", "python/benches"]);
    for name in shell::capture(list)?.split('\0').filter(|n| !n.is_empty()) {
        let skip = [".rs", ".md", "Cargo.toml", "Cargo.lock"]
            .iter()
            .any(|end| name.ends_with(end));
        let from = root.join(name);
        if skip || !from.is_file() {
            continue;
        }
        let target = to.join(name);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(&from, &target).with_context(|| format!("cannot copy {name}"))?;
    }
    Ok(())
}

fn make_runnable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// The programs, as (package, name in the bundle).
#[derive(Default)]
struct Script {
    tests: Vec<(String, String)>,
    benches: Vec<(String, String)>,
    /// And what each is given.
    examples: Vec<(String, String, &'static str)>,
}

impl Script {
    fn text(&self) -> String {
        let mut text = String::from(RUN_HEAD);
        for (package, name) in &self.tests {
            // Writing to a String cannot fail.
            let show = match name.as_str() {
                // What they measured is wanted whether they hold or not.
                "testkit-hypotheses" => " --show-output",
                // As far as it came, where a million of each take longer than a step may.
                "vramfs-patterns" => " --nocapture",
                _ => "",
            };
            let _infallible = writeln!(text, "run test {package} {name} tests/{name}{show}");
        }
        for (package, name) in &self.benches {
            let _infallible = writeln!(text, "run bench {package} {name} benches/{name} --bench");
        }
        for (package, name, given) in &self.examples {
            let _infallible =
                writeln!(text, "run example {package} {name} examples/{name} {given}");
        }
        text.push_str(RUN_TAIL);
        text
    }
}

const RUN_HEAD: &str = r#"#!/usr/bin/env bash
# Runs everything in this bundle on this machine: run.sh OUTPUT_DIR [STEPS]
# With STEPS only those whose KIND-NAME the regular expression finds, as 'runtime|jit'.
# Without FERCUDA_DEVICE in the environment it asks for the GPU and fails
# without one.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: run.sh OUTPUT_DIR [STEPS]}
only=${2:-.}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export FERCUDA_DEVICE=${FERCUDA_DEVICE:-gpu}
export FERCUDA_BUNDLE=$here
# A capture of one thread's may forbid calls of others, loading code waits for their kernels, and all host
# callbacks of a process run in one thread: tests that are about such things have the device for themselves.
export RUST_TEST_THREADS=1
export PYTHONPATH=$here/decoder${PYTHONPATH:+:$PYTHONPATH}
failures=0 steps=0
printf '{"device": "%s", "steps": [\n' "$FERCUDA_DEVICE" > "$out/results.json"
separator=""

wanted() { # KIND-NAME...: whether one of them is
  local step
  for step; do
    [[ $step =~ $only ]] && return 0
  done
  return 1
}

record() { # KIND NAME STATUS SECONDS
  printf '%-6s %-40s %-6s %6d s\n' "$1" "$2" "$([[ $3 == 0 ]] && echo ok || echo "rc $3")" "$4" | tee -a "$out/table.txt"
  printf '%s{"kind": "%s", "name": "%s", "rc": %d, "seconds": %d}' "$separator" "$1" "$2" "$3" "$4" >> "$out/results.json"
  separator=$',\n'
  steps=$((steps + 1))
  [[ $3 == 0 ]] || failures=$((failures + 1))
}

step() { # KIND NAME COMMAND...
  wanted "$1-$2" || return 0
  attempt "$@"
  return 0
}

attempt() { # KIND NAME COMMAND...: whether it succeeded, wanted or not
  local kind=$1 name=$2 start=$SECONDS status=0 limit=300
  shift 2
  [[ $kind == gpu || $kind == vram ]] && limit=1800
  timeout "${FERCUDA_STEP_LIMIT:-$limit}" "$@" > "$out/$kind-$name.log" 2>&1 || status=$?
  record "$kind" "$name" "$status" $((SECONDS - start))
  grep -h '^test .*FAILED' "$out/$kind-$name.log" | sed 's/^/    /' | tee -a "$out/table.txt"
  return "$status"
}

run() { # KIND PACKAGE NAME PROGRAM ARGS...
  local kind=$1 package=$2 name=$3 program=$here/$4
  shift 4
  local folder=$here/files/crates/$package
  mkdir -p "$folder"
  step "$kind" "$name" env -C "$folder" "$program" "$@"
}

: > "$out/table.txt"
(nvidia-smi || true) > "$out/machine.txt" 2>&1
run tool cli doctor bin/fercuda doctor
run tool cli demo bin/fercuda demo
run corpus testkit compare bin/fercuda-filetest compare "$here/corpus" --json "$out/corpus.json"
"#;

const RUN_TAIL: &str = r#"
for suite in pjdfstest fsx stress-ng speed; do
  step vram "$suite" "$here/bin/xtask" suites "$suite" --device "$FERCUDA_DEVICE" --fercuda "$here/bin/fercuda" \
    --bin-dir "$here/suites" --out "$out/suites" --json "$out/vram-$suite.json" --at-once 8
done
exported() { # a file of a mount is used where it is, and its mount ends whatever comes of that
  local at=$(mktemp -d) status=0
  "$here/bin/fercuda" vram mount "$at" --device "$FERCUDA_DEVICE" --size 4GiB || return
  "$here/examples/vramfs-export" "$at" 2048 || status=$?
  "$here/bin/fercuda" vram umount "$at" && rmdir "$at" && return "$status"
}
export -f exported
export here
step example vramfs-export bash -c exported
if python3 -c 'import pytest, numpy, cuda.bindings' 2>/dev/null; then
  for file in "$here"/files/tests/clients/test_*.py; do
    name=$(basename "$file" .py)
    if [[ $name == test_numba ]] && ! python3 -c 'import numba.cuda, numpy; numpy.row_stack' 2>/dev/null; then
      echo "client $name: not run (no numba-cuda here, or one too old for its numpy)" | tee -a "$out/table.txt"
      continue
    fi
    step client "$name" python3 -m pytest -q -p no:cacheprovider "$file"
  done
else
  echo "clients: not run (no pytest, numpy or cuda.bindings here)" | tee -a "$out/table.txt"
fi
package() { # NAME TESTS...
  local name=$1
  shift
  step python "$name" env -C "$here/files/python" "PYTHONPATH=$out/package" "PATH=$here/bin:$PATH" python3 -m pytest -q -p no:cacheprovider "$@"
}
if ! wanted python-package python-cuda-core python-torch python-jax python-cupy python-triton bench-python-pairs; then
  : # nor is its wheel
elif ! python3 -c 'import sys, pip, pytest, numpy; assert sys.version_info >= (3, 11)' 2>/dev/null; then
  echo "the Python package: not run (needs Python 3.11, pip, pytest and numpy)" | tee -a "$out/table.txt"
else
  # What an earlier run has left there pip would leave too.
  rm -rf "$out/package"
  if attempt python install python3 -m pip install --quiet --no-index --no-deps --target "$out/package" "$here"/python/*.whl; then
    package package tests --ignore=tests/frameworks --ignore=tests/test_cuda_core.py
    if python3 -c 'import cuda.core' 2>/dev/null; then
      package cuda-core tests/test_cuda_core.py
    else
      echo "the Python package with cuda.core: not run (no cuda.core here)" | tee -a "$out/table.txt"
    fi
    for framework in torch jax cupy triton; do
      if [[ $FERCUDA_DEVICE == gpu ]] && python3 -c "import $framework" 2>/dev/null; then
        package "$framework" "tests/frameworks/test_$framework.py"
      else
        echo "the Python package with $framework: not run (no $framework here, or no GPU asked for)" | tee -a "$out/table.txt"
      fi
    done
    step bench python-pairs env "PYTHONPATH=$out/package" python3 "$here/files/python/benches/pairs.py" --json "$out/python-pairs.json"
  else
    echo "the Python package: not run (its wheel could not be installed; see python-install.log)" | tee -a "$out/table.txt"
  fi
  rm -rf "$out/package"
fi
if [[ $FERCUDA_DEVICE == gpu ]]; then
  regime=$here/files/tests/gpu/regime
  fercuda=$here/bin/fercuda
  if cc -O2 -pthread "$regime/pairs.c" -o "$out/pairs" -ldl 2>/dev/null; then
    step gpu pairs-bare bash -c '"$@" > "$0"' "$out/pairs-bare.json" "$out/pairs"
    step gpu pairs-governed bash -c '"$@" > "$0"' "$out/pairs-governed.json" "$fercuda" run -- "$out/pairs"
    rm -f "$out/pairs"
  else
    echo "pairs of allocation and free: not run (no C compiler here)" | tee -a "$out/table.txt"
  fi
  step gpu conformance python3 "$regime/conformance.py" "$fercuda" "$out/conformance" --record "$out/conformance-gpu.json"
  if python3 -c 'import pytest, numpy, cuda.bindings' 2>/dev/null; then
    step gpu driver-rules-governed "$fercuda" run --json "$out/rules.json" -- python3 -m pytest -q -p no:cacheprovider \
      "$here/files/tests/clients/test_driver_rules.py"
  fi
  if python3 -c 'import torch, jax, cupy, triton' 2>/dev/null; then
    step gpu frameworks-as-tenants python3 "$regime/judge.py" "$fercuda" "$out/regime"
    step gpu step-in-turns python3 "$regime/turns.py" "$fercuda" --json "$out/turns.json"
  else
    echo "frameworks as tenants: not run (needs torch, jax, cupy and triton)" | tee -a "$out/table.txt"
  fi
  step gpu rust-tenants python3 "$here/files/tests/gpu/rust-tenants/compare.py" "$fercuda" "$out/rust-tenants" \
    "$here"/rust-tenants/*-tenant
  step gpu features python3 "$regime/features.py" "$fercuda" "$out/features"
  if python3 -c 'import torch, jax' 2>/dev/null; then
    step gpu reclaim "$fercuda" run --report -- python3 "$regime/reclaim.py"
  else
    echo "memory that frameworks cache: not run (needs torch and jax)" | tee -a "$out/table.txt"
  fi
  if python3 -c 'import torch, cuda.bindings' 2>/dev/null; then
    step gpu attention-against-torch python3 "$here/files/tests/gpu/attention.py" "$here/listings"
    step gpu kernels-against-torch python3 "$here/files/tests/gpu/kernels.py" "$here/listings" --json "$out/kernels.json"
  else
    echo "kernels against PyTorch: not run (no torch or cuda.bindings here)" | tee -a "$out/table.txt"
  fi
fi
printf '\n], "failures": %d}\n' "$failures" >> "$out/results.json"
echo "$steps run, $failures failed" | tee -a "$out/table.txt"
[[ $failures == 0 && $steps != 0 ]]
"#;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Stdio;

    use super::*;

    fn program(path: &Path, exit: u8) {
        written(path, &format!("#!/bin/sh\necho given $*\nexit {exit}\n"));
    }

    /// By another process: what one thread has open to be written, whatever another starts has open
    /// too until it runs, and what is open
    /// to be written cannot be run.
    fn written(path: &Path, text: &str) {
        let mut writer = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 700 \"$0\""])
            .arg(path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = writer.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        assert!(writer.wait().unwrap().success());
    }

    /// What `run.sh OUT STEPS` says at its end, whether it was content, and its results.
    fn ran(folder: &Path, steps: &str) -> (String, bool, serde_json::Value) {
        let out = folder.join("out");
        let mut script = Command::new(folder.join("run.sh"));
        script.arg(&out).arg(steps).env("FERCUDA_DEVICE", "soft");
        let mut search = folder.join("path").into_os_string();
        search.push(":");
        search.push(std::env::var_os("PATH").unwrap_or_default());
        script.env("PATH", search);
        let answer = script.output().unwrap();
        let said = String::from_utf8(answer.stdout).unwrap();
        let results = fs::read_to_string(out.join("results.json")).unwrap();
        let last = said.lines().last().unwrap_or_default().to_owned();
        (
            last,
            answer.status.success(),
            serde_json::from_str(&results).unwrap(),
        )
    }

    #[test]
    fn the_script_runs_what_it_is_asked_for_and_says_what_failed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for name in ["tests", "examples"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        program(&folder.join("tests/runtime-good"), 0);
        program(&folder.join("tests/jit-bad"), 3);
        program(&folder.join("examples/runtime-reboot"), 0);
        let script = Script {
            tests: vec![
                ("runtime".to_owned(), "runtime-good".to_owned()),
                ("jit".to_owned(), "jit-bad".to_owned()),
            ],
            benches: Vec::new(),
            examples: vec![("runtime".to_owned(), "runtime-reboot".to_owned(), "10 20")],
        };
        written(&folder.join("run.sh"), &script.text());
        let (said, succeeded, results) = ran(folder, "^(test|example)-runtime");
        assert_eq!((&*said, succeeded), ("2 run, 0 failed", true));
        assert_eq!(results["steps"][1]["name"], "runtime-reboot");
        let log = folder.join("out/example-runtime-reboot.log");
        assert_eq!(fs::read_to_string(log).unwrap(), "given 10 20\n");
        let (said, succeeded, results) = ran(folder, "^test-");
        assert_eq!((&*said, succeeded), ("2 run, 1 failed", false));
        assert_eq!(
            (&results["failures"], &results["steps"][1]["rc"]),
            (&1.into(), &3.into())
        );
        // Suites are given what the bundle has of them.
        fs::create_dir(folder.join("bin")).unwrap();
        program(&folder.join("bin/xtask"), 0);
        let (said, succeeded, _) = ran(folder, "^vram-");
        assert_eq!((&*said, succeeded), ("4 run, 0 failed", true));
        let log = fs::read_to_string(folder.join("out/vram-fsx.log")).unwrap();
        let wanted = format!(
            "given suites fsx --device soft --fercuda {0}/bin/fercuda --bin-dir {0}/suites",
            folder.display()
        );
        assert!(log.starts_with(&wanted), "{log}");
        // A name that nothing has is no success.
        let (said, succeeded, _) = ran(folder, "no-such-step");
        assert_eq!((&*said, succeeded), ("0 run, 0 failed", false));
    }

    /// A Python that has pip, pytest and numpy: it installs into the folder that it is given,
    /// as pip does, and then that folder is on the search path of what it tests.
    const PYTHON: &str = r#"#!/bin/sh
case "$*" in
  "-c import sys, pip, pytest, numpy;"*) ;;
  "-m pip install "*)
    while [ "$1" != --target ]; do shift; done
    [ -e "$(dirname "$0")/broken" ] && { echo no wheel for this Python >&2; exit 1; }
    [ -e "$2" ] || { mkdir "$2"; echo new > "$2/version"; } ;;
  "-m pytest "*) cat "$PYTHONPATH/version" ;;
  *) exit 1 ;;
esac
"#;

    #[test]
    fn a_wheel_that_cannot_be_installed_is_a_failure_and_none_but_the_new_one_is_tested() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for name in ["path", "python", "files/python", "out/package"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        written(&folder.join("path/python3"), PYTHON);
        written(&folder.join("run.sh"), &Script::default().text());
        // As a run leaves it that was interrupted.
        fs::write(folder.join("out/package/version"), "old\n").unwrap();
        let (said, succeeded, results) = ran(folder, "^python-package$");
        assert_eq!((&*said, succeeded), ("2 run, 0 failed", true));
        assert_eq!(results["steps"][0]["name"], "install");
        let log = |name: &str| fs::read_to_string(folder.join("out").join(name)).unwrap();
        assert_eq!(log("python-package.log"), "new\n");
        assert!(!folder.join("out/package").exists());
        fs::write(folder.join("path/broken"), "").unwrap();
        let (said, succeeded, results) = ran(folder, "^python");
        assert_eq!((&*said, succeeded), ("1 run, 1 failed", false));
        assert_eq!(
            (&results["steps"][0]["name"], &results["steps"][0]["rc"]),
            (&"install".into(), &1.into())
        );
        assert_eq!(log("python-install.log"), "no wheel for this Python\n");
        assert!(log("table.txt").contains("could not be installed"));
        // Without any of its steps nothing is installed.
        let (said, _, _) = ran(folder, "^test-");
        assert_eq!(said, "0 run, 0 failed");
    }
}
