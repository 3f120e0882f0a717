//! Memory that a library of a Python process caches, and that another one needs.
//!
//! A module named `torch` stands in for PyTorch, which cannot run on the software device: the
//! functions that the hook calls of it are two documented ones.

use std::fs;
use std::path::PathBuf;

use crate::support::{Client, Run, compiled_as, sources};

/// A library of the given path's last parts, so that it is a tenant of that name.
fn library(tempdir: &tempfile::TempDir, place: &str) -> PathBuf {
    let built = compiled_as("libholder.so", "holder.c", &["-shared", "-fPIC", "-lcuda"]);
    let path = tempdir.path().join(place);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::copy(built, &path).unwrap();
    path
}

fn run(case: &str, variables: &[(&str, &str)]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let torch = library(&folder, "torch/lib/libc10_cuda.so");
    let jax = library(&folder, "jaxlib/libjax.so");
    let script = sources().join("reclaim.py");
    let python = std::env::var("FERCUDA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let words = [&script, &PathBuf::from(case), &torch, &jax].map(|it| it.display().to_string());
    let mut client = Client::new(python, &words.each_ref().map(String::as_str)).hooked();
    for (name, value) in variables {
        client = client.env(name, value);
    }
    client.env("FERCUDA_LIMIT", "1GiB").run()
}

#[track_caller]
fn passes(case: &str, variables: &[(&str, &str)]) -> Run {
    let run = run(case, variables).succeeds();
    assert!(run.stdout.ends_with("end\n"), "{}", run.stdout);
    run
}

#[test]
fn cached_memory_is_released_for_another_library() {
    passes("cached", &[]);
    // The limit of a tenant is another matter: nothing that others release helps.
    passes("kept", &[("FERCUDA_TENANT_LIMITS", "jax=512MiB")]);
}

#[test]
fn caches_are_kept_if_the_user_says_so() {
    passes("kept", &[("FERCUDA_RECLAIM", "0")]);
}

#[test]
fn an_owner_that_raises_or_is_not_there_does_no_harm() {
    passes("raising", &[]);
}

#[test]
fn an_exception_that_is_being_raised_stays() {
    passes("exception", &[]);
}

#[test]
fn an_interpreter_that_is_held_elsewhere_delays_a_refusal_and_no_more() {
    passes("held", &[]);
}

#[test]
fn threads_that_hold_the_interpreter_and_let_it_go_do_not_block_requests() {
    passes("threads", &[]);
}
