//! The headers of the C interface, made of the sources of `fercuda-capi`.
//!
//! Invariant: what is committed is what the sources say; tidy compares.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};
use cbindgen::{
    Builder, Config, DocumentationStyle, EnumConfig, ExportConfig, Language, LayoutConfig, Style,
};

use crate::shell;

/// Where the headers are, and where what they are made of.
const HEADERS: &str = "include/fercuda";
const SOURCES: &str = "crates/capi/src";

/// A header of one part of the interface.
struct Header {
    name: &'static str,
    /// Its sources, in their order.
    sources: &'static [&'static str],
    /// Its own headers that it needs.
    includes: &'static [&'static str],
    /// Types that no function has by name, since C gives their numbers.
    types: &'static [&'static str],
    /// What is said at its beginning.
    about: &'static str,
}

const ALL: [Header; 3] = [
    Header {
        name: "c_api.h",
        sources: &[
            "status.rs",
            "c_api/types.rs",
            "c_api/runtimes.rs",
            "c_api/requests.rs",
            "c_api/buffers.rs",
            "c_api/allocators.rs",
            "c_api/jobs.rs",
            "c_api/launches.rs",
            "c_api/graphs.rs",
            "c_api/expressions.rs",
            "c_api/ops.rs",
            "c_api/arenas.rs",
            "c_api/dispatchers.rs",
        ],
        includes: &[],
        types: &[
            "fer_device",
            "fer_dtype",
            "fer_regime",
            "fer_job_state",
            "fer_argument_kind",
            "fer_task_number",
        ],
        about: "Runtimes, sessions, buffers, jobs, modules, launches, graphs, expressions, ops,\n\
            arenas, dispatchers.\n\
            \n\
            Functions answer with a fer_status; fer_last_error_message says more. What is\n\
            named is a number, which names one thing for ever or nothing. All functions may\n\
            be called from all threads.\n\
            \n\
            A pointer that is not NULL leads to what is said of it, for the time of the call,\n\
            and a result is written only with FER_OK. NULL is FER_ERROR_INVALID_ARGUMENT\n\
            where nothing else is said.",
    },
    Header {
        name: "intercept_telemetry.h",
        sources: &["telemetry.rs"],
        includes: &["fercuda/c_api.h"],
        types: &[],
        about: "What the doors before the driver have counted in this process.",
    },
    Header {
        name: "execution_contract.h",
        sources: &["contract.rs"],
        includes: &["fercuda/c_api.h"],
        types: &["fer_entrypoint", "fer_frontend"],
        about: "Which ways into feRcuda there are, and which are served here.",
    },
];

/// The first lines of each header.
const LICENCE: &str = "SPDX-License-Identifier: MIT OR Apache-2.0";
const MADE: &str = "Made by `cargo xtask headers` of the sources in crates/capi.";

/// Writes the headers.
pub(crate) fn run() -> Result<()> {
    for (path, text) in generate()? {
        let path = shell::root().join(path);
        fs::create_dir_all(path.parent().context("a header is in a folder")?)?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("written: {}", path.display());
    }
    Ok(())
}

/// What the sources say: each header's path from the root, and its text.
pub(crate) fn generate() -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let name = "fercuda.h";
    let (about, guard) = (comment("feRcuda for C and C++: all of it."), guard(name));
    let mut umbrella = format!("{about}\n#ifndef {guard}\n#define {guard}\n\n");
    for header in &ALL {
        let mut text = Vec::new();
        let made = builder(header).generate();
        let made = made.with_context(|| format!("cbindgen cannot make {}", header.name))?;
        made.write(&mut text);
        all.insert(
            format!("{HEADERS}/{}", header.name),
            String::from_utf8(text)?,
        );
        all.insert(
            format!("{HEADERS}/api/{}", header.name),
            by_another_path(header.name),
        );
        umbrella += &format!("#include \"fercuda/{}\"\n", header.name);
    }
    umbrella += &format!("\n#endif /* {guard} */\n");
    all.insert(format!("{HEADERS}/{name}"), umbrella);
    Ok(all)
}

/// A header at `fercuda/api/`, where programs look for it too.
fn by_another_path(name: &str) -> String {
    let about = comment(&format!("The same as fercuda/{name}."));
    format!("{about}\n#include \"fercuda/{name}\"\n")
}

fn builder(header: &Header) -> Builder {
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        style: Style::Both,
        documentation_style: DocumentationStyle::C99,
        header: Some(comment(header.about)),
        include_guard: Some(guard(header.name)),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        includes: header.includes.iter().map(|it| (*it).to_owned()).collect(),
        usize_is_size_t: true,
        layout: LayoutConfig::default(),
        enumeration: EnumConfig::default(),
        export: ExportConfig {
            include: header.types.iter().map(|it| (*it).to_owned()).collect(),
            ..ExportConfig::default()
        },
        ..Config::default()
    };
    let folder = shell::root().join(SOURCES);
    let sources = header.sources.iter();
    sources.fold(Builder::new().with_config(config), |builder, source| {
        builder.with_src(folder.join(source))
    })
}

/// What keeps a header from being read twice.
fn guard(name: &str) -> String {
    format!("FERCUDA_{}", name.replace('.', "_").to_uppercase())
}

fn comment(about: &str) -> String {
    let lines = [LICENCE, MADE, ""].into_iter().chain(about.lines());
    let lines = lines.map(|line| format!(" * {line}").trim_end().to_owned());
    let lines: Vec<String> = lines.collect();
    format!("/*\n{}\n */", lines.join("\n"))
}
