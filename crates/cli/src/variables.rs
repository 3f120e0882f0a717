//! Checks of the `FERCUDA_*` variables of the environment when `fercuda` starts.

use anyhow::Result;
use fercuda_governor::{ConfigError, GovernorConfig};
use fercuda_softgpu::control::Config;

use crate::out::alert;
use crate::status::bail_usage;

/// Warns about each variable with our prefix that nothing reads, naming the closest one.
pub(crate) fn warn_about_unknown() {
    let (_, errors) = GovernorConfig::read(std::env::vars_os());
    for error in errors {
        if matches!(error, ConfigError::Unknown { .. }) {
            let text = error.to_string();
            let text = text.replace("\ntry: ", "; try: ");
            alert!("warning: {}", crate::terminal::plain_text(&text));
        }
    }
}

/// Refuses invalid values of the software device's variables: it would use its defaults.
///
/// # Errors
/// A usage error that names what would be valid.
pub(crate) fn check_software_device() -> Result<()> {
    let errors = Config::env_errors();
    if !errors.is_empty() {
        bail_usage!(
            "{}\ntry: a valid value, or unset it; docs/environment.md has all variables",
            errors.join("\n")
        );
    }
    Ok(())
}
