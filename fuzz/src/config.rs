//! A configuration file: read whole or refused with reasons; never half, never a panic.

use penstock_control::config::{HostConfig, parse};
use penstock_control::snapshot::Compiler;
use penstock_toml::FILE_BYTES_MAX;

/// Runs one input.
///
/// # Panics
/// When a property does not hold.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if text.len() > FILE_BYTES_MAX {
        return;
    }
    match parse(&text, "host.toml") {
        Ok(config) => check_right(&config),
        Err(errors) => {
            assert!(!errors.0.is_empty(), "refused without a reason");
            let lines = text.lines().count() + 1;
            for error in &errors.0 {
                let words = error.to_string();
                assert!(!error.problem.is_empty(), "{words}");
                assert!(error.line as usize <= lines, "{words}: there are {lines} lines");
            }
        }
    }
}

/// What holds of every configuration that was accepted.
///
/// # Panics
/// It does not.
pub fn check_right(config: &HostConfig) {
    let text = toml::to_string(config).expect("a right configuration can be written");
    let again = parse(&text, "again").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    assert_eq!(&again, config, "written and read again\n{text}");
    let mut compiler = Compiler::default();
    if let Ok(snapshot) = compiler.compile(config, 1) {
        for port in &config.ports {
            let id = compiler.ids().port(&port.name).expect("every port has a number");
            assert!(snapshot.port(id).is_some(), "every port has a policy");
        }
    }
}
