//! What can be installed: bundles of packages, and their versions.
//!
//! Invariant: every package that is asked for has one exact version. Those that
//! requirements.txt of the checkout names have its version and hashes, and are installed with
//! all that they depend on by these; of others what they depend on is pip's choice.

use std::fmt::Write as _;

use anyhow::{Result, bail};

/// The versions and hashes that the tests run with.
const REQUIREMENTS: &str = include_str!("../../../../requirements.txt");

/// The newest of JAX that every Python from 3.11 on can have.
const JAX: &str = "0.10.2";

/// A bundle by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Bundle {
    /// NVIDIA's run-time compiler with its headers: compiles CUDA C++
    Nvrtc,
    /// Hugging Face: models' definitions, weights, tokenizers, the hub
    Hf,
    /// Files of quantised models
    Gguf,
    /// JAX with CUDA as fits this machine's driver
    Jax,
    /// All that the tests need, as in a checkout's build/venv
    Dev,
}

/// One package, pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pin {
    /// As a package index knows it.
    pub(super) name: String,
    /// Of it, what else is wanted: `[cuda13]`, or nothing.
    extra: String,
    pub(super) version: String,
    /// SHA-256 of each wheel that is taken; none if any is.
    hashes: Vec<String>,
}

impl Pin {
    /// As pip takes it, without hashes.
    pub(super) fn requirement(&self) -> String {
        format!("{}{}=={}", self.name, self.extra, self.version)
    }
}

impl Bundle {
    pub(super) const ALL: [Bundle; 5] = [
        Bundle::Nvrtc,
        Bundle::Hf,
        Bundle::Gguf,
        Bundle::Jax,
        Bundle::Dev,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nvrtc => "nvrtc",
            Self::Hf => "hf",
            Self::Gguf => "gguf",
            Self::Jax => "jax",
            Self::Dev => "dev",
        }
    }

    /// What it is for.
    pub(super) fn purpose(self) -> &'static str {
        match self {
            Self::Nvrtc => "NVIDIA's run-time compiler and CUDA's headers, for CUDA C++",
            Self::Hf => "Hugging Face: models' definitions, weights, tokenizers, hub",
            Self::Gguf => "files of quantised models, and what reads them",
            Self::Jax => "JAX with CUDA as fits the driver",
            Self::Dev => "all that the tests need",
        }
    }

    /// Its packages, with a driver of this version, if there is one.
    ///
    /// # Errors
    /// If nothing fits the driver.
    pub(super) fn pins(self, driver: Option<(u32, u32)>) -> Result<Vec<Pin>> {
        let exact = |pins: &[(&str, &str, &str)]| {
            let pin = |(name, extra, version): &(&str, &str, &str)| Pin {
                name: (*name).to_owned(),
                extra: (*extra).to_owned(),
                version: (*version).to_owned(),
                hashes: Vec::new(),
            };
            pins.iter().map(pin).collect()
        };
        Ok(match self {
            Self::Nvrtc => hashed(&[
                "nvidia-cuda-nvrtc",
                "nvidia-cuda-runtime",
                "nvidia-cuda-crt",
                "nvidia-cuda-cccl",
            ]),
            Self::Gguf => hashed(&[
                "gguf",
                "numpy",
                "pyyaml",
                "requests",
                "tqdm",
                "certifi",
                "charset-normalizer",
                "idna",
                "urllib3",
            ]),
            Self::Dev => all_hashed(),
            Self::Hf => exact(&[
                ("transformers", "", "5.23.0"),
                ("safetensors", "", "0.8.0"),
                ("tokenizers", "", "0.23.3"),
                ("huggingface-hub", "", "2.4.0"),
            ]),
            Self::Jax => {
                let (extra, plugin) = cuda_of_jax(driver)?;
                // JAX is there without CUDA too. pip installs the plugin behind what that needs.
                exact(&[("jax", extra, JAX), (plugin, "[with-cuda]", JAX)])
            }
        })
    }
}

/// What JAX is to bring, and the package by which it has that: CUDA as new as the driver bears.
/// Without a driver that of the software device's version.
fn cuda_of_jax(driver: Option<(u32, u32)>) -> Result<(&'static str, &'static str)> {
    match driver {
        None | Some((13.., _)) => Ok(("[cuda13]", "jax-cuda13-plugin")),
        Some((12, _)) => Ok(("[cuda12]", "jax-cuda12-plugin")),
        Some((major, minor)) => bail!(
            "JAX {JAX} needs a driver for CUDA 12 or 13, and this machine's is for {major}.{minor}\n\
             try: a newer driver of NVIDIA's (525 or later)"
        ),
    }
}

/// Those of requirements.txt with these names.
fn hashed(names: &[&str]) -> Vec<Pin> {
    let mut pins = all_hashed();
    pins.retain(|pin| names.contains(&pin.name.as_str()));
    pins
}

/// All of requirements.txt: a line `NAME==VERSION \`, then a line for each hash.
fn all_hashed() -> Vec<Pin> {
    let mut pins: Vec<Pin> = Vec::new();
    for line in REQUIREMENTS.lines() {
        let line = line.trim().trim_end_matches('\\').trim_end();
        if let Some(hash) = line.strip_prefix("--hash=sha256:") {
            if let Some(pin) = pins.last_mut() {
                pin.hashes.push(hash.to_owned());
            }
        } else if let Some((name, version)) = line.split_once("==")
            && !line.starts_with('#')
        {
            pins.push(Pin {
                name: name.to_owned(),
                extra: String::new(),
                version: version.to_owned(),
                hashes: Vec::new(),
            });
        }
    }
    pins
}

/// The words behind `pip install` for these, and what pip is to read, if they have hashes.
pub(super) fn words(pins: &[Pin]) -> (Vec<String>, Option<String>) {
    if pins.iter().any(|pin| pin.hashes.is_empty()) {
        return (pins.iter().map(Pin::requirement).collect(), None);
    }
    let mut text = String::new();
    for pin in pins {
        // Writing to a string does not fail.
        write!(text, "{}", pin.requirement()).ok();
        for hash in &pin.hashes {
            write!(text, " \\\n    --hash=sha256:{hash}").ok();
        }
        text.push('\n');
    }
    let words = ["--require-hashes", "-r", "/dev/stdin"];
    (words.map(str::to_owned).into(), Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_one_version_and_those_of_the_tests_their_hashes() {
        for bundle in Bundle::ALL {
            let pins = bundle.pins(None).unwrap();
            assert!(!pins.is_empty());
            let has_hashes = !matches!(bundle, Bundle::Hf | Bundle::Jax);
            for pin in &pins {
                let same = pins.iter().filter(|it| it.name == pin.name).count();
                assert_eq!(same, 1, "{pin:?}");
                assert!(
                    pin.version.starts_with(|c: char| c.is_ascii_digit()),
                    "{pin:?}"
                );
                assert_eq!(pin.hashes.is_empty(), !has_hashes, "{pin:?}");
                let is_sha256 =
                    |it: &String| it.len() == 64 && it.bytes().all(|b| b.is_ascii_hexdigit());
                assert!(pin.hashes.iter().all(is_sha256), "{pin:?}");
            }
        }
        // None of the names is misspelt.
        assert_eq!(Bundle::Nvrtc.pins(None).unwrap().len(), 4);
        assert_eq!(Bundle::Gguf.pins(None).unwrap().len(), 9);
        let all = REQUIREMENTS.matches("==").count();
        assert_eq!(Bundle::Dev.pins(None).unwrap().len(), all);
        let hashes: usize = all_hashed().iter().map(|pin| pin.hashes.len()).sum();
        assert_eq!(hashes, REQUIREMENTS.matches("--hash=").count());
    }

    #[test]
    fn what_pip_reads_is_what_requirements_txt_says() {
        let (words, text) = words(&all_hashed());
        assert_eq!(words, ["--require-hashes", "-r", "/dev/stdin"]);
        let lines = |text: &str| -> Vec<String> {
            let lines = text.lines().map(str::to_owned);
            lines
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .collect()
        };
        assert_eq!(lines(&text.unwrap()), lines(REQUIREMENTS));
    }

    #[test]
    fn jax_comes_with_the_cuda_that_the_driver_bears() {
        let of = |driver| {
            let pins = Bundle::Jax.pins(driver)?;
            let all: Vec<String> = pins.iter().map(Pin::requirement).collect();
            anyhow::Ok(all.join(" "))
        };
        for (driver, cuda) in [(None, 13), (Some((13, 1)), 13), (Some((12, 9)), 12)] {
            let expected =
                format!("jax[cuda{cuda}]==0.10.2 jax-cuda{cuda}-plugin[with-cuda]==0.10.2");
            assert_eq!(of(driver).unwrap(), expected);
        }
        let refused = of(Some((11, 8))).unwrap_err().to_string();
        assert!(
            refused.contains("11.8") && refused.contains("\ntry: "),
            "{refused}"
        );
    }
}
