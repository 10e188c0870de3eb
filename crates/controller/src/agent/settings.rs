//! Settings of an agent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Name of this server in the topology. The server's certificate must contain this name.
    pub host: String,
    /// Controllers as `host:port`, optionally with `https://`. The agent calls them in this order.
    pub endpoints: Vec<String>,
    /// Certificates. `None` means neither encryption nor authentication. Use `None` only for tests
    /// and on a single machine.
    pub tls: Option<AgentTls>,
    /// File of the last plan.
    pub plan_file: PathBuf,
    /// Shortest and longest pause between two rounds, without the random part.
    pub pause: (Duration, Duration),
    /// Time limit of a controller's answer.
    pub connect_limit: Duration,
    /// Time limit of a call to the switch.
    pub side_limit: Duration,
    /// Time between two reports, until a controller sets another time.
    pub interval: Duration,
}

/// PEM files. The agent reads them for each connection, so it uses a renewed certificate from the
/// next connection on.
#[derive(Clone, Debug)]
pub struct AgentTls {
    /// CA of the controllers' certificates.
    pub ca: PathBuf,
    /// This host's certificate.
    pub certificate: PathBuf,
    /// Private key of this host's certificate.
    pub key: PathBuf,
    /// Revocation lists of the controllers' CA.
    pub crl: Option<PathBuf>,
    /// Name that every controller's certificate has.
    pub server_name: String,
}

/// Why settings are invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A setting is invalid.
    #[error("agent of host {host}: {problem}")]
    Setting {
        host: String,
        /// The setting's name, what is wrong, and the remedy.
        problem: String,
    },
    /// A file cannot be read.
    #[error("{path}: {problem}; name a file that the agent can read")]
    File { path: String, problem: String },
}

impl AgentSettings {
    /// Returns default settings. Pauses are 0.5 to 10 s. The limits are 3 s for a controller and 5
    /// s for the switch. The agent sends a report each second.
    #[must_use]
    pub fn new(host: &str, endpoints: Vec<String>, tls: Option<AgentTls>, plan: &Path) -> Self {
        Self {
            host: host.to_owned(),
            endpoints,
            tls,
            plan_file: plan.to_owned(),
            pause: (Duration::from_millis(500), Duration::from_secs(10)),
            connect_limit: Duration::from_secs(3),
            side_limit: Duration::from_secs(5),
            interval: Duration::from_secs(1),
        }
    }

    pub(super) fn check(&self) -> Result<(), SettingsError> {
        let wrong = |problem: String| {
            let host = self.host.clone();
            Err(SettingsError::Setting { host, problem })
        };
        if self.host.is_empty() || self.host.len() > crate::wire::NAME_BYTES_MAX {
            return wrong("a name of 1 to 63 bytes is needed; give the topology's".to_owned());
        }
        if self.endpoints.is_empty() {
            return wrong("no controller is named; name at least one".to_owned());
        }
        for endpoint in &self.endpoints {
            if let Err(problem) = self.uri(endpoint) {
                return wrong(problem);
            }
        }
        let (least, most) = self.pause;
        if least < Duration::from_millis(1) || most < least {
            return wrong(format!("pauses of {least:?} to {most:?}; the least is 1 ms"));
        }
        for (what, time) in [
            ("for a controller", self.connect_limit),
            ("for the switch", self.side_limit),
            ("for an interval", self.interval),
        ] {
            if time < Duration::from_millis(1) {
                return wrong(format!("{time:?} {what} is too short; use 1 ms or more"));
            }
        }
        let tls = self
            .tls
            .iter()
            .flat_map(|tls| [&tls.ca, &tls.certificate, &tls.key].into_iter().chain(&tls.crl));
        for path in tls {
            std::fs::read(path).map_err(|error| SettingsError::File {
                path: path.display().to_string(),
                problem: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Returns an address with its scheme. If there are certificates, only `https` is valid.
    pub(super) fn uri(&self, named: &str) -> Result<String, String> {
        let wanted = if self.tls.is_some() { "https" } else { "http" };
        let (scheme, address) = named.split_once("://").unwrap_or((wanted, named));
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        match (scheme, port) {
            (_, None) => Err(format!("controller {named} has no port; write host:port")),
            (scheme, _) if scheme == wanted => Ok(format!("{scheme}://{address}")),
            ("https", _) => Err(format!("controller {named} needs certificates; name their files")),
            ("http", _) => {
                Err(format!("controller {named} has no encryption; name it with https://"))
            }
            _ => Err(format!("controller {named} is neither http:// nor https://")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoint: &str) -> AgentSettings {
        let endpoints = vec![endpoint.to_owned()];
        AgentSettings::new("server-0", endpoints, None, Path::new("plan"))
    }

    #[test]
    fn invalid_settings_are_refused_with_a_remedy() {
        assert_eq!(settings("10.0.0.1:7000").check(), Ok(()));
        let error = |settings: AgentSettings| settings.check().unwrap_err().to_string();
        assert!(error(settings("10.0.0.1")).ends_with("has no port; write host:port"));
        assert!(error(settings("https://a:1")).ends_with("needs certificates; name their files"));
        assert!(error(settings("ftp://a:1")).contains("neither http:// nor https://"));
        let none = AgentSettings { endpoints: vec![], ..settings("a:1") };
        assert!(error(none).ends_with("name at least one"));
        let unnamed = AgentSettings { host: String::new(), ..settings("a:1") };
        assert!(error(unnamed).contains("1 to 63 bytes"));
        let file = PathBuf::from("/nowhere/ca.pem");
        let tls = AgentTls {
            ca: file.clone(),
            certificate: file.clone(),
            key: file,
            crl: None,
            server_name: "controller".into(),
        };
        let tls = AgentSettings { tls: Some(tls), ..settings("a:1") };
        assert!(error(tls.clone()).contains("/nowhere/ca.pem"));
        assert_eq!(tls.uri("a:1"), Ok("https://a:1".to_owned()));
        assert!(tls.uri("http://a:1").is_err(), "nobody talks an agent out of encryption");
    }
}
