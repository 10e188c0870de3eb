//! Defines the addresses and credentials with which the controller connects to an etcd cluster.

use std::fmt;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::super::contract::StoreError;
use crate::listen::tls::roots;

/// Interval of keep-alive pings on a connection with a running request. By default, etcd permits
/// one ping in 5 s (`--grpc-keepalive-min-time`) and closes connections that send more pings.
const PING_EVERY: Duration = Duration::from_secs(10);

/// Configuration of an etcd client.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// Members as `host:port`, optionally with `http://` or `https://`. One member suffices to
    /// reach a cluster. If all members are listed, the client continues when a member fails.
    pub endpoints: Vec<String>,
    /// TLS certificates, which `https://` requires and `http://` forbids.
    pub tls: Option<EtcdTls>,
    /// Time limit of a call including all attempts. The time limit is at least 100 ms and must be
    /// well below the leader's lease. A call that exceeds the time limit fails with
    /// [`StoreError::Unavailable`].
    pub limit: Duration,
}

impl EtcdConfig {
    /// Returns a configuration without encryption, with a limit of 3 s per call.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        Self { endpoints, tls: None, limit: Duration::from_secs(3) }
    }

    /// Returns a channel to each member of the cluster. The channels are not connected yet.
    pub(super) fn channels(&self) -> Result<Vec<Channel>, StoreError> {
        if self.endpoints.is_empty() {
            return Err(StoreError::Invalid("no etcd endpoint; name at least one".to_owned()));
        }
        if self.limit < Duration::from_millis(100) {
            let limit = self.limit;
            let problem = format!("{limit:?} for a call to etcd is too short; use 100 ms or more");
            return Err(StoreError::Invalid(problem));
        }
        self.endpoints.iter().map(|endpoint| self.channel(endpoint)).collect()
    }

    fn channel(&self, named: &str) -> Result<Channel, StoreError> {
        let refused =
            |problem: &str| StoreError::Invalid(format!("etcd endpoint {named}: {problem}"));
        let (scheme, address) = match named.split_once("://") {
            Some((scheme, address)) => (scheme, address),
            None if self.tls.is_some() => ("https", named),
            None => ("http", named),
        };
        match (scheme, &self.tls) {
            ("http", None) | ("https", Some(_)) => {}
            ("http", Some(_)) => return Err(refused("http:// has no encryption; write https://")),
            ("https", None) => {
                return Err(refused("TLS needs the CA's certificate; name the file"));
            }
            _ => return Err(refused("the scheme is neither http:// nor https://")),
        }
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"));
        let endpoint =
            endpoint.map_err(|_| refused("the endpoint is not an address; write host:port"))?;
        if endpoint.uri().port().is_none() {
            return Err(refused("the address has no port; etcd's default port is 2379"));
        }
        let mut endpoint = endpoint
            .connect_timeout(self.limit)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(self.limit);
        if let Some(tls) = &self.tls {
            if !roots(&tls.ca).is_ok_and(|roots| !roots.is_empty()) {
                return Err(refused("the file of the CA contains no certificate in PEM"));
            }
            let config = tls.client();
            endpoint = endpoint.tls_config(config).map_err(|error| {
                let error = crate::wire::describe(&error);
                refused(&format!("{error}; the certificates and the key are PEM files"))
            })?;
        }
        Ok(endpoint.connect_lazy())
    }
}

/// Certificates for an etcd cluster, as contents of PEM files.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// Certificate of the CA that signed the members' certificates.
    pub ca: Vec<u8>,
    /// Certificate and key of the controller. `None` if the members require no client certificate.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl EtcdTls {
    fn client(&self) -> ClientTlsConfig {
        let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.ca));
        match &self.identity {
            Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
            None => config,
        }
    }
}

/// Formats the certificates without the key, because a private key must not appear in logs.
impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls")
            .field("identity", &self.identity.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(config: &EtcdConfig) -> String {
        config.channels().map(|_| ()).unwrap_err().to_string()
    }

    #[tokio::test]
    async fn an_endpoint_that_cannot_be_meant_is_named_with_what_to_do() {
        let one = |endpoint: &str| EtcdConfig::new(vec![endpoint.to_owned()]);
        for (endpoint, remedy) in [
            ("ftp://a:1", "neither http:// nor https://"),
            ("https://a:2379", "needs the CA's certificate"),
            ("etcd-1", "2379"),
            ("a b", "write host:port"),
        ] {
            let error = refusal(&one(endpoint));
            assert!(error.contains(endpoint) && error.contains(remedy), "{error}");
        }
        assert!(refusal(&EtcdConfig::new(Vec::new())).contains("name at least one"));
        let short = EtcdConfig { limit: Duration::from_millis(1), ..one("a:2379") };
        assert!(refusal(&short).contains("100 ms"));
        let tls = EtcdTls { ca: b"none".to_vec(), identity: None };
        let plain = EtcdConfig { tls: Some(tls.clone()), ..one("http://a:2379") };
        assert!(refusal(&plain).contains("https://"));
        let tls = EtcdConfig { tls: Some(tls), ..one("https://a:2379") };
        assert!(refusal(&tls).contains("no certificate"));
        for good in ["10.0.0.1:2379", "http://[::1]:2379", "http://etcd-1:2379"] {
            assert!(one(good).channels().is_ok(), "{good}");
        }
    }
}
