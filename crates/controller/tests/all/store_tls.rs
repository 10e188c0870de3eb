//! Tests an etcd cluster with TLS that admits only clients with certificates of its CA.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use penstock_controller::store::{Etcd, EtcdConfig, EtcdTls, Store, StoreError};
use penstock_testing::temp_dir;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

use crate::common::etcd::{Certificates, Cluster, answers};

/// CA that signs the certificates of the cluster and its clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// Returns a certificate for 127.0.0.1 and the certificate's key in PEM. A member of the
    /// cluster also uses its certificate as a client.
    fn sign(&self) -> (Vec<u8>, Vec<u8>) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }
}

#[tokio::test]
async fn both_sides_show_certificates_and_strangers_stay_out() {
    let (dir, authority, stranger) = (temp_dir(), Authority::new(), Authority::new());
    let file = |name: &str, content: &[u8]| -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let (certificate, key) = authority.sign();
    let certificates = Certificates {
        ca: file("ca.pem", &authority.pem()),
        certificate: file("member.pem", &certificate),
        key: file("member.key", &key),
    };
    let Some(cluster) = Cluster::start_with(Some(certificates)).await else { return };
    let config = |tls: EtcdTls| {
        let limit = penstock_testing::scaled(Duration::from_secs(2));
        EtcdConfig { endpoints: cluster.endpoints(), tls: Some(tls), limit }
    };
    let store = |tls: EtcdTls| Etcd::new(&config(tls)).unwrap();

    let known = store(EtcdTls { ca: authority.pem(), identity: Some(authority.sign()) });
    answers(&known).await;
    assert_eq!(known.get("nothing").await, Ok(None));

    let trusts_another = EtcdTls { ca: stranger.pem(), identity: Some(authority.sign()) };
    let renewed = store(trusts_another);
    let error = renewed.get("nothing").await.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
    // The certificates may change while the client runs. Damaged certificates change nothing.
    let good = EtcdTls { ca: authority.pem(), identity: Some(authority.sign()) };
    renewed.renew(&config(good.clone())).unwrap();
    assert_eq!(renewed.get("nothing").await, Ok(None));
    let damaged = EtcdTls { ca: b"-".to_vec(), ..good };
    assert!(matches!(renewed.renew(&config(damaged)), Err(StoreError::Invalid(_))));
    assert_eq!(renewed.get("nothing").await, Ok(None));

    for identity in [None, Some(stranger.sign())] {
        let unknown = store(EtcdTls { ca: authority.pem(), identity });
        let refused = unknown.get("nothing").await;
        assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    }
}
