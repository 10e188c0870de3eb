//! Finds the daemon's directory with the minutes of contracts.
//!
//! # Approach
//!
//! The daemon's status names the directory. The daemon's configuration may name another directory,
//! because a new `state_dir` takes effect only when the daemon is started again. It is used if the
//! daemon is of a release whose status does not name the directory. If no daemon answers, the
//! configuration files in the bundle name it.

use std::path::Path;

/// Default of `state_dir` in `[host]`.
const DEFAULT: &str = "/var/lib/penstock";

/// Directory of the daemon's state.
#[derive(Debug, PartialEq, Eq)]
pub struct StateDir {
    path: String,
    /// Where the path is from.
    source: String,
}

impl Default for StateDir {
    fn default() -> Self {
        let source = "default, because no daemon answers and no configuration file has [host]";
        Self { path: DEFAULT.to_owned(), source: source.to_owned() }
    }
}

impl StateDir {
    /// Reads the directory from the daemon's status in JSON. Returns `None` if the text is no
    /// status with a directory.
    pub fn of_daemon(status: &[u8]) -> Option<Self> {
        let status: serde_json::Value = serde_json::from_slice(status).ok()?;
        let path = status.get("state_dir")?.as_str()?;
        let source = "`state_dir` of the daemon".to_owned();
        Path::new(path).is_absolute().then(|| Self { path: path.to_owned(), source })
    }

    /// Reads the directory from a host's configuration. `source` says where the configuration is
    /// from. Returns `None` if the text is no TOML with `[host]`, or if the path is relative.
    pub fn read(config: &[u8], source: &str) -> Option<Self> {
        let config: toml::Table = str::from_utf8(config).ok()?.parse().ok()?;
        let host = config.get("host")?.as_table()?;
        let path = host.get("state_dir").map_or(Some(DEFAULT), toml::Value::as_str)?;
        let is_absolute = Path::new(path).is_absolute();
        is_absolute.then(|| Self { path: path.to_owned(), source: source.to_owned() })
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the reason why a report in JSON has no contract. Returns `None` if it has one, or if
    /// it is no report.
    pub fn missing(&self, report: &[u8]) -> Option<String> {
        let report: serde_json::Value = serde_json::from_slice(report).ok()?;
        if !report.get("contracts")?.as_array()?.is_empty() {
            return None;
        }
        let Self { path, source } = self;
        let problem = if Path::new(path).is_dir() {
            "no minutes of contracts in the last day"
        } else {
            "there is no such directory"
        };
        Some(format!("{path}: {problem} ({source})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_the_directory() {
        let path = |text: &str| StateDir::read(text.as_bytes(), "x").map(|dir| dir.path);
        assert_eq!(path("[host]\nstate_dir = \"/s\"\n").as_deref(), Some("/s"));
        assert_eq!(path("[host]\nname = \"h\"\n").as_deref(), Some(DEFAULT));
        for text in ["", "[store]\n", "[host]\nstate_dir = \"s\"\n", "[host]\nstate_dir = 5\n"] {
            assert_eq!(path(text), None, "{text}");
        }
        assert_eq!(StateDir::read(&[0xff], "x"), None);
    }

    #[test]
    fn the_daemons_status_names_the_directory() {
        let path = |text: &str| StateDir::of_daemon(text.as_bytes()).map(|dir| dir.path);
        assert_eq!(path(r#"{"name": "h", "state_dir": "/s"}"#).as_deref(), Some("/s"));
        for text in ["", "{}", r#"{"state_dir": ""}"#, r#"{"state_dir": 5}"#] {
            assert_eq!(path(text), None, "{text}");
        }
    }

    #[test]
    fn a_report_without_contracts_has_the_reason() {
        let dir = |path: &str| StateDir { path: path.to_owned(), source: "test".to_owned() };
        let empty = b"{\"contracts\": []}";
        let problem = "/nonexistent: there is no such directory (test)";
        assert_eq!(dir("/nonexistent").missing(empty).as_deref(), Some(problem));
        let problem = "/: no minutes of contracts in the last day (test)";
        assert_eq!(dir("/").missing(empty).as_deref(), Some(problem));
        assert_eq!(dir("/").missing(b"{\"contracts\": [{}]}"), None);
        assert_eq!(dir("/").missing(b""), None);
    }
}
