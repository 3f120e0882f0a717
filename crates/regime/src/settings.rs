//! The environment, read once: when the program first calls the driver.

use std::sync::OnceLock;

use fercuda_governor::GovernorConfig;

use crate::say;

/// What the environment says. A value that cannot be read counts as not set,
/// and one line says so.
pub fn config() -> &'static GovernorConfig {
    static CONFIG: OnceLock<GovernorConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let (config, complaints) = GovernorConfig::read(std::env::vars_os());
        for complaint in complaints {
            say(&complaint.to_string());
        }
        config
    })
}
