//! Bundles of packages that can be installed, with their versions.
//!
//! Invariant: every requested package has one exact version. Packages that the checkout's
//! requirements.txt names have its version and hashes, and so do their dependencies; pip
//! resolves the dependencies of the others.

use std::fmt::Write as _;

use anyhow::{Result, bail};

/// The versions and hashes that the tests use.
const REQUIREMENTS: &str = include_str!("../../../../requirements.txt");

/// The newest JAX that supports every Python from 3.11 on.
const JAX: &str = "0.10.2";

/// A bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Bundle {
    /// NVIDIA's runtime compiler with its headers: compiles CUDA C++
    Nvrtc,
    /// Hugging Face: model definitions, weights, tokenizers, the hub
    Hf,
    /// Quantised model files (GGUF)
    Gguf,
    /// JAX with the CUDA version that this machine's driver supports
    Jax,
    /// Everything the tests need, as in a checkout's build/venv
    Dev,
}

/// One package, pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pin {
    /// Its name in the package index.
    pub(super) name: String,
    /// Its extras: `[cuda13]`, or nothing.
    extra: String,
    pub(super) version: String,
    /// SHA-256 of each accepted wheel; empty if any is accepted.
    hashes: Vec<String>,
}

impl Pin {
    /// As a pip requirement, without hashes.
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

    /// A one-line description.
    pub(super) fn purpose(self) -> &'static str {
        match self {
            Self::Nvrtc => "NVIDIA's runtime compiler and CUDA headers, for CUDA C++",
            Self::Hf => "Hugging Face: model definitions, weights, tokenizers, hub",
            Self::Gguf => "quantised model files (GGUF), with a reader for them",
            Self::Jax => "JAX with the CUDA version that fits the driver",
            Self::Dev => "everything the tests need",
        }
    }

    /// Its packages, for a driver of this version, if there is a driver.
    ///
    /// # Errors
    /// If nothing supports the driver.
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
                // JAX without CUDA has the same name; pip installs the plugin after its
                // dependencies.
                exact(&[("jax", extra, JAX), (plugin, "[with-cuda]", JAX)])
            }
        })
    }
}

/// The CUDA extra of JAX, and the package that provides it: the newest CUDA that the driver
/// supports. Without a driver, the software device's version.
fn cuda_of_jax(driver: Option<(u32, u32)>) -> Result<(&'static str, &'static str)> {
    match driver {
        None | Some((13.., _)) => Ok(("[cuda13]", "jax-cuda13-plugin")),
        Some((12, _)) => Ok(("[cuda12]", "jax-cuda12-plugin")),
        Some((major, minor)) => bail!(
            "JAX {JAX} needs a driver for CUDA 12 or 13, but this machine's driver supports {major}.{minor}\n\
             try: a newer NVIDIA driver (525 or later)"
        ),
    }
}

/// The packages of requirements.txt with these names.
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

/// The arguments of `pip install` for these packages, and pip's stdin if they have hashes.
pub(super) fn words(pins: &[Pin]) -> (Vec<String>, Option<String>) {
    if pins.iter().any(|pin| pin.hashes.is_empty()) {
        return (pins.iter().map(Pin::requirement).collect(), None);
    }
    let mut text = String::new();
    for pin in pins {
        // Writing to a string cannot fail.
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
    fn every_package_has_one_version_and_those_of_the_tests_have_hashes() {
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
        // No name is misspelt.
        assert_eq!(Bundle::Nvrtc.pins(None).unwrap().len(), 4);
        assert_eq!(Bundle::Gguf.pins(None).unwrap().len(), 9);
        let all = REQUIREMENTS.matches("==").count();
        assert_eq!(Bundle::Dev.pins(None).unwrap().len(), all);
        let hashes: usize = all_hashed().iter().map(|pin| pin.hashes.len()).sum();
        assert_eq!(hashes, REQUIREMENTS.matches("--hash=").count());
    }

    #[test]
    fn the_input_of_pip_is_the_text_of_requirements_txt() {
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
    fn jax_comes_with_the_cuda_version_that_the_driver_supports() {
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
