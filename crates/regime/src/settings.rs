//! Configuration from the environment, read once at the program's first driver call.

use std::sync::OnceLock;

use fercuda_governor::GovernorConfig;

use crate::print_diagnostic;

/// Returns the configuration. A variable with an invalid value counts as unset,
/// and a diagnostic reports it.
pub fn config() -> &'static GovernorConfig {
    static CONFIG: OnceLock<GovernorConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let (mut config, errors) = GovernorConfig::read(std::env::vars_os());
        config.yields_to_checks =
            std::env::var_os("FERCUDA_BACKING").is_none_or(|backing| backing.is_empty());
        for error in errors {
            print_diagnostic(&error.to_string());
        }
        config
    })
}
