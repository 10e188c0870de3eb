//! Makes certificates and revocation lists for tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    date_time_ymd,
};

/// CA with a key that is made for one test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns a certificate for a name, and the certificate's key, in PEM.
    pub fn sign(&self, name: &str) -> (String, String) {
        self.sign_as(name, None)
    }

    /// Returns a certificate and its key, like [`Self::sign`], with the serial number `serial`.
    #[allow(dead_code, reason = "not every test revokes")]
    pub fn sign_numbered(&self, name: &str, serial: u64) -> (String, String) {
        self.sign_as(name, Some(SerialNumber::from(serial)))
    }

    /// Returns a certificate with the serial number `serial` that expires at the start of the year
    /// `until`.
    #[allow(dead_code, reason = "not every test has one that expired")]
    pub fn sign_until(&self, name: &str, serial: u64, until: i32) -> String {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.not_after = date_time_ymd(until, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.signed_by(&KeyPair::generate().unwrap(), &self.0).unwrap().pem()
    }

    /// Returns a revocation list that revokes the serial numbers `serials`, and expires at the
    /// start of the year `until`.
    #[allow(dead_code, reason = "not every test revokes")]
    pub fn revokes(&self, serials: &[u64], until: i32) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(until, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }

    fn sign_as(&self, name: &str, serial: Option<SerialNumber>) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = serial;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}
