//! A folder, and an archive of it, to carry to a machine that has a GPU and no Rust.
//!
//! Holds the optimised test and bench programs, the `fercuda` program, the
//! drop-in library, the kernels as text, the foreign clients, and one script,
//! `run.sh OUTPUT_DIR`, that runs all of it and leaves a table and logs.
//!
//! Invariant: under 64 MiB when packed, and nothing of NVIDIA's inside. Binaries run where
//! glibc is no older than on the machine that built them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::{cargo, conformance, dist, python, setup, shell};

const LIMIT_BYTES: u64 = 64 << 20;

/// Packages whose tests speak to a device; those of the others need none.
const ON_A_DEVICE: [&str; 3] = ["cuda", "runtime", "testkit"];

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
    for folder in ["bin", "lib/fercuda", "tests", "benches", "dropin", "files"] {
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
    let drop_in = conformance::build_drop_in("release")?;

    let mut script = Script::default();
    for made in &tests {
        if let Some(program) = made.executable.as_ref().filter(|_| made.is_test)
            && ON_A_DEVICE.contains(&made.package.as_str())
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
    for made in &programs {
        if let Some(program) = &made.executable
            && made.package != "xtask"
            && made.package != "cli"
        {
            carry(program, &out.join("bin").join(&made.target))?;
        }
    }
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

    let listings = out.join("listings");
    fs::create_dir_all(&listings)?;
    let mut list = cargo::command("run");
    list.args([
        "--locked",
        "--release",
        "--package",
        "fercuda-ptx",
        "--example",
        "listings",
        "--",
    ])
    .arg(&listings);
    shell::run(list)?;

    shell::step("the corpus: PTX, and what the software device makes of it");
    let mut corpus = shell::command(out.join("bin/fercuda-filetest"));
    corpus.arg("bundle").arg(out.join("corpus"));
    crate::test::environment(&mut corpus, &venv);
    corpus
        .env("FERCUDA_DEVICE", "soft")
        .env("FERCUDA_SOFT_CHECK", "0");
    shell::run(corpus)?;

    fs::write(out.join("commit"), commit()?)?;
    let run = out.join("run.sh");
    fs::write(&run, script.text())?;
    make_runnable(&run)?;

    shell::step("packing");
    let archive = out.with_extension("tar.gz");
    let mut pack = shell::command("tar");
    pack.arg("--create")
        .arg("--gzip")
        .arg("--file")
        .arg(&archive);
    pack.arg("--directory").arg(&out).arg(".");
    shell::run(pack)?;
    let size_bytes = fs::metadata(&archive)?.len();
    println!(
        "\n{}\n{}: {:.1} MiB; {} test programs, {} benches\n\
         run there: tar xzf {} -C FOLDER && FOLDER/run.sh OUTPUT_DIR",
        parts.profile,
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
}

impl Script {
    fn text(&self) -> String {
        let mut text = String::from(RUN_HEAD);
        for (package, name) in &self.tests {
            // Writing to a String cannot fail.
            // What the hypotheses measured is wanted whether they hold or not.
            let show = if name.ends_with("hypotheses") {
                " --show-output"
            } else {
                ""
            };
            let _infallible = writeln!(text, "run test {package} {name} tests/{name}{show}");
        }
        for (package, name) in &self.benches {
            let _infallible = writeln!(text, "run bench {package} {name} benches/{name} --bench");
        }
        text.push_str(RUN_TAIL);
        text
    }
}

const RUN_HEAD: &str = r#"#!/usr/bin/env bash
# Runs everything in this bundle on this machine: run.sh OUTPUT_DIR
# Without FERCUDA_DEVICE in the environment it asks for the GPU and fails
# without one.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: run.sh OUTPUT_DIR}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export FERCUDA_DEVICE=${FERCUDA_DEVICE:-gpu}
export FERCUDA_BUNDLE=$here
failures=0
printf '{"device": "%s", "steps": [\n' "$FERCUDA_DEVICE" > "$out/results.json"
separator=""

record() { # KIND NAME STATUS SECONDS
  printf '%-6s %-40s %-6s %6d s\n' "$1" "$2" "$([[ $3 == 0 ]] && echo ok || echo "rc $3")" "$4" | tee -a "$out/table.txt"
  printf '%s{"kind": "%s", "name": "%s", "rc": %d, "seconds": %d}' "$separator" "$1" "$2" "$3" "$4" >> "$out/results.json"
  separator=$',\n'
  [[ $3 == 0 ]] || failures=$((failures + 1))
}

run() { # KIND PACKAGE NAME PROGRAM ARGS...
  local kind=$1 package=$2 name=$3 program=$here/$4 start=$SECONDS status=0
  shift 4
  local folder=$here/files/crates/$package
  mkdir -p "$folder"
  (cd "$folder" && timeout "${FERCUDA_STEP_LIMIT:-300}" "$program" "$@") > "$out/$kind-$name.log" 2>&1 || status=$?
  record "$kind" "$name" "$status" $((SECONDS - start))
  grep -h '^test .*FAILED' "$out/$kind-$name.log" | sed 's/^/    /' | tee -a "$out/table.txt"
  return 0
}

: > "$out/table.txt"
(nvidia-smi || true) > "$out/machine.txt" 2>&1
run tool cli doctor bin/fercuda doctor
run tool cli demo bin/fercuda demo
run corpus testkit compare bin/fercuda-filetest compare "$here/corpus" --json "$out/corpus.json"
"#;

const RUN_TAIL: &str = r#"
if python3 -c 'import pytest, numpy, cuda.bindings' 2>/dev/null; then
  for file in "$here"/files/tests/clients/test_*.py; do
    name=$(basename "$file" .py) start=$SECONDS status=0
    if [[ $name == test_numba ]] && ! python3 -c 'import numba.cuda, numpy; numpy.row_stack' 2>/dev/null; then
      echo "client $name: not run (no numba-cuda here, or one too old for its numpy)" | tee -a "$out/table.txt"
      continue
    fi
    timeout "${FERCUDA_STEP_LIMIT:-300}" python3 -m pytest -q -p no:cacheprovider "$file" > "$out/client-$name.log" 2>&1 || status=$?
    record client "$name" "$status" $((SECONDS - start))
  done
else
  echo "clients: not run (no pytest, numpy or cuda.bindings here)" | tee -a "$out/table.txt"
fi
if python3 -c 'import sys, pip, pytest, numpy; assert sys.version_info >= (3, 11)' 2>/dev/null \
    && python3 -m pip install --quiet --no-index --no-deps --target "$out/package" "$here"/python/*.whl > "$out/package.log" 2>&1; then
  package() { # NAME TESTS...
    local name=$1 start=$SECONDS status=0
    shift
    (cd "$here/files/python" && PYTHONPATH=$out/package timeout "${FERCUDA_STEP_LIMIT:-300}" \
      python3 -m pytest -q -p no:cacheprovider "$@") > "$out/python-$name.log" 2>&1 || status=$?
    record python "$name" "$status" $((SECONDS - start))
  }
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
  start=$SECONDS status=0
  PYTHONPATH=$out/package timeout "${FERCUDA_STEP_LIMIT:-300}" python3 "$here/files/python/benches/pairs.py" \
    --json "$out/python-pairs.json" > "$out/python-pairs.log" 2>&1 || status=$?
  record bench python-pairs "$status" $((SECONDS - start))
  rm -rf "$out/package"
else
  echo "the Python package: not run (needs Python 3.11, pip, pytest and numpy)" | tee -a "$out/table.txt"
fi
if [[ $FERCUDA_DEVICE == gpu ]]; then
  regime=$here/files/tests/gpu/regime
  if cc -O2 -pthread "$regime/pairs.c" -o "$out/pairs" -ldl 2>/dev/null; then
    for way in bare governed; do
      start=$SECONDS status=0
      [[ $way == bare ]] && before=() || before=("$here/bin/fercuda" run --)
      "${before[@]}" "$out/pairs" > "$out/pairs-$way.json" 2> "$out/gpu-pairs-$way.log" || status=$?
      record gpu "pairs-$way" "$status" $((SECONDS - start))
    done
    rm -f "$out/pairs"
  else
    echo "pairs of allocation and free: not run (no C compiler here)" | tee -a "$out/table.txt"
  fi
  start=$SECONDS status=0
  python3 "$regime/conformance.py" "$here/bin/fercuda" "$out/conformance" --record "$out/conformance-gpu.json" \
    > "$out/gpu-conformance.log" 2>&1 || status=$?
  record gpu conformance "$status" $((SECONDS - start))
  if python3 -c 'import pytest, numpy, cuda.bindings' 2>/dev/null; then
    start=$SECONDS status=0
    "$here/bin/fercuda" run --json "$out/rules.json" -- python3 -m pytest -q -p no:cacheprovider \
      "$here/files/tests/clients/test_driver_rules.py" > "$out/gpu-rules-governed.log" 2>&1 || status=$?
    record gpu driver-rules-governed "$status" $((SECONDS - start))
  fi
  if python3 -c 'import torch, jax, cupy, triton' 2>/dev/null; then
    start=$SECONDS status=0
    python3 "$regime/judge.py" "$here/bin/fercuda" "$out/regime" > "$out/gpu-regime.log" 2>&1 || status=$?
    record gpu frameworks-as-tenants "$status" $((SECONDS - start))
    start=$SECONDS status=0
    python3 "$regime/turns.py" "$here/bin/fercuda" --json "$out/turns.json" > "$out/gpu-turns.log" 2>&1 || status=$?
    record gpu step-in-turns "$status" $((SECONDS - start))
  else
    echo "frameworks as tenants: not run (needs torch, jax, cupy and triton)" | tee -a "$out/table.txt"
  fi
  if python3 -c 'import torch, cuda.bindings' 2>/dev/null; then
    start=$SECONDS status=0
    python3 "$here/files/tests/gpu/attention.py" "$here/listings" > "$out/gpu-attention.log" 2>&1 || status=$?
    record gpu attention-against-torch "$status" $((SECONDS - start))
    start=$SECONDS status=0
    python3 "$here/files/tests/gpu/kernels.py" "$here/listings" --json "$out/kernels.json" > "$out/gpu-kernels.log" 2>&1 || status=$?
    record gpu kernels-against-torch "$status" $((SECONDS - start))
  else
    echo "kernels against PyTorch: not run (no torch or cuda.bindings here)" | tee -a "$out/table.txt"
  fi
fi
printf '\n], "failures": %d}\n' "$failures" >> "$out/results.json"
echo "$failures failed" | tee -a "$out/table.txt"
[[ $failures == 0 ]]
"#;
