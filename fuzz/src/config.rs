//! Checks that the parser either accepts a configuration file as a whole or refuses the file with
//! reasons, and never panics.

use penstock_control::config::{HostConfig, parse};
use penstock_control::snapshot::Compiler;
use penstock_toml::FILE_BYTES_MAX;

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if text.len() > FILE_BYTES_MAX {
        return;
    }
    match parse(&text, "host.toml") {
        Ok(config) => check_right(&config),
        Err(errors) => {
            assert!(!errors.0.is_empty(), "a refusal without a reason");
            let lines = text.lines().count() + 1;
            for error in &errors.0 {
                let words = error.to_string();
                assert!(!error.problem.is_empty(), "{words}");
                assert!(error.line as usize <= lines, "{words}: there are {lines} lines");
            }
        }
    }
}

/// Checks properties of an accepted configuration: it survives writing and reading, and its
/// compiled rules have every port.
///
/// # Panics
/// Panics if a property does not hold for the configuration.
pub fn check_right(config: &HostConfig) {
    let text = toml::to_string(config).expect("a valid configuration");
    let again = parse(&text, "again").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    assert_eq!(&again, config, "written and parsed again\n{text}");
    let mut compiler = Compiler::default();
    if let Ok(snapshot) = compiler.compile(config, 1) {
        for port in &config.ports {
            let id = compiler.ids().port(&port.name).expect("an id for the port");
            assert!(snapshot.port(id).is_some(), "a compiled port");
        }
    }
}
