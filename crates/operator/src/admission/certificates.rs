//! Who we are to the API server: a certificate of our own making, the authority that signed it, and unguessable paths.
//!
//! All replicas share one identity, kept in a Secret. It is renewed long before it expires. The key of the authority is thrown away as
//! soon as it has signed: nobody can ever sign a second certificate with it. Pure but for randomness: that of keys and signatures is the
//! machine's in any case, which is why no simulation has certificates.

use std::collections::BTreeMap;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::environment::Randomness;

/// How long a certificate is good for.
const LIFETIME_DAYS: i32 = 90;
/// How long before its end it is renewed: long enough for a person to notice that it is not, and to act.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Clocks of machines differ: a new certificate must not be of the future anywhere.
const CLOCK_LEEWAY_DAYS: i32 = 1;
const TOKEN_BYTES: usize = 16;

const TLS_SECRET: &str = "kubernetes.io/tls";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";
const ADMIT_TOKEN: &str = "token-admit";
const CONFIGS_TOKEN: &str = "token-configs";
const NOT_AFTER: &str = "not-after";
const END_OF_CERTIFICATE: &str = "-----END CERTIFICATE-----";

/// What the API server calls us about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Pods and workloads.
    Admit,
    /// Changes of configs.
    Configs,
}

/// Parts of the paths that the API server calls. It does not say who it is when it calls us; but only it, and whoever may read webhook
/// configurations, knows these paths. Each endpoint has its own: when a pinned pod has to wait for us, the API server tells the whole path
/// of `admit` to whoever wanted the pod, and `configs` is the one that writes.
#[derive(Clone, PartialEq, Eq)]
struct Tokens {
    admit: String,
    configs: String,
}

/// It has no `Debug`: it holds a private key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    certificate: String,
    key: String,
    /// What the API server is to trust: the authority of this certificate, and that of the one before, which other replicas may still
    /// serve.
    pub authorities: String,
    tokens: Tokens,
    not_after: Timestamp,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("the field `{0}` is missing or is not text")]
    Missing(&'static str),
    #[error("the field `{NOT_AFTER}` is not a time")]
    NotATime,
    #[error("the certificate or its key cannot be read")]
    Unreadable,
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    #[error("a certificate cannot be made: {0}")]
    NotMade(#[from] rcgen::Error),
    #[error("the time of expiry cannot be computed: {0}")]
    NoDate(#[from] jiff::Error),
    #[error("there is no randomness: {0}")]
    NoRandomness(getrandom::Error),
}

/// Whether a certificate is to be replaced now.
pub fn needs_renewal(not_after: Timestamp, now: Timestamp) -> bool {
    not_after.duration_since(now) < RENEW_BEFORE
}

impl Identity {
    /// A new one. The paths stay those of `previous`, whose authority stays trusted.
    pub fn issue(
        host: &str,
        previous: Option<&Self>,
        now: Timestamp,
        random: &Randomness,
    ) -> Result<Self, IdentityError> {
        let today = now.to_zoned(TimeZone::UTC).date();
        let (first, last) = (today.checked_sub(CLOCK_LEEWAY_DAYS.days())?, today.checked_add(LIFETIME_DAYS.days())?);
        let (issuer, authority) = authority(first, last)?;
        let (certificate, key) = server_certificate(host, &issuer, first, last)?;
        let trusted = previous.map(|previous| newest(&previous.authorities)).unwrap_or_default();
        let tokens = match previous {
            Some(previous) => previous.tokens.clone(),
            None => Tokens { admit: random_token(random)?, configs: random_token(random)? },
        };
        let not_after = last.to_zoned(TimeZone::UTC)?.timestamp();
        Ok(Self { certificate, key, authorities: format!("{authority}{trusted}"), tokens, not_after })
    }

    pub fn needs_renewal(&self, now: Timestamp) -> bool {
        needs_renewal(self.not_after, now)
    }

    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    pub fn token(&self, endpoint: Endpoint) -> &str {
        match endpoint {
            Endpoint::Admit => &self.tokens.admit,
            Endpoint::Configs => &self.tokens.configs,
        }
    }

    /// As the TLS server uses it.
    pub fn certified_key(&self) -> Result<CertifiedKey, IdentityError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or(IdentityError::Unreadable)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| IdentityError::Unreadable)?;
        Ok(CertifiedKey::from_der(chain, key, &ring::default_provider())?)
    }

    pub fn to_secret(&self, name: &str, resource_version: Option<String>) -> Secret {
        let not_after = self.not_after.to_string();
        let fields = [
            (CERTIFICATE, &self.certificate),
            (KEY, &self.key),
            (AUTHORITIES, &self.authorities),
            (ADMIT_TOKEN, &self.tokens.admit),
            (CONFIGS_TOKEN, &self.tokens.configs),
            (NOT_AFTER, &not_after),
        ];
        let data = fields.map(|(name, text)| (name.to_owned(), ByteString(text.clone().into_bytes())));
        Secret {
            metadata: ObjectMeta { name: Some(name.to_owned()), resource_version, ..ObjectMeta::default() },
            type_: Some(TLS_SECRET.to_owned()),
            data: Some(BTreeMap::from(data)),
            ..Secret::default()
        }
    }

    /// Only what can be served: a Secret that somebody edited by mistake is then made anew.
    pub fn read(secret: &Secret) -> Result<Self, IdentityError> {
        let field = |name: &'static str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(name));
            let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
            text.filter(|text| !text.is_empty()).ok_or(IdentityError::Missing(name))
        };
        let not_after = field(NOT_AFTER)?.parse().map_err(|_| IdentityError::NotATime)?;
        let (certificate, key) = (field(CERTIFICATE)?, field(KEY)?);
        let tokens = Tokens { admit: field(ADMIT_TOKEN)?, configs: field(CONFIGS_TOKEN)? };
        let identity = Self { certificate, key, authorities: field(AUTHORITIES)?, tokens, not_after };
        identity.certified_key()?;
        Ok(identity)
    }
}

fn authority(first: Date, last: Date) -> Result<(Issuer<'static, KeyPair>, String), IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "lockstep-webhook-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    limit(&mut params, first, last);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Ok((Issuer::new(params, key), certificate))
}

fn server_certificate(
    host: &str,
    issuer: &Issuer<'_, KeyPair>,
    first: Date,
    last: Date,
) -> Result<(String, String), IdentityError> {
    let mut params = CertificateParams::new([host.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, "lockstep-webhook");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    limit(&mut params, first, last);
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

/// Whole days: that is how rcgen takes a time without a further library.
fn limit(params: &mut CertificateParams, first: Date, last: Date) {
    let midnight =
        |date: Date| rcgen::date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs());
    (params.not_before, params.not_after) = (midnight(first), midnight(last));
}

/// The first certificate of a bundle: the newest is always written first.
fn newest(bundle: &str) -> &str {
    bundle.find(END_OF_CERTIFICATE).map_or("", |end| &bundle[..end + END_OF_CERTIFICATE.len()])
}

fn random_token(random: &Randomness) -> Result<String, IdentityError> {
    let mut bytes = [0; TOKEN_BYTES];
    random.fill(&mut bytes).map_err(IdentityError::NoRandomness)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
impl Identity {
    /// One with the machine's own randomness.
    pub fn issued(host: &str, previous: Option<&Self>, now: Timestamp) -> Result<Self, IdentityError> {
        Self::issue(host, previous, now, &Randomness::system())
    }
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    const HOST: &str = "lockstep-webhook.lockstep-system.svc";

    fn now() -> Timestamp {
        "2026-11-15T12:00:00Z".parse().unwrap()
    }

    fn days(count: i64) -> SignedDuration {
        SignedDuration::from_hours(24 * count)
    }

    fn issued() -> Identity {
        Identity::issued(HOST, None, now()).unwrap()
    }

    /// As the API server checks it.
    fn is_accepted(identity: &Identity, authorities: &str, host: &'static str, at: Timestamp) -> bool {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
            roots.add(authority.unwrap()).unwrap();
        }
        let provider = std::sync::Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
        let certificate = identity.certified_key().unwrap().cert[0].clone();
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at.as_second().unsigned_abs()));
        verifier.verify_server_cert(&certificate, &[], &ServerName::try_from(host).unwrap(), &[], at).is_ok()
    }

    #[test]
    fn a_certificate_is_renewed_a_month_before_its_end() {
        let end = now() + days(90);
        assert!(!needs_renewal(end, now()));
        assert!(!needs_renewal(end, end - days(30)));
        assert!(needs_renewal(end, end - days(30) + SignedDuration::from_secs(1)));
        assert!(needs_renewal(end, end + days(1)), "also one that has expired");
    }

    #[test]
    fn the_certificate_is_good_for_our_host_and_time_alone() {
        let identity = issued();
        assert!(is_accepted(&identity, &identity.authorities, HOST, now()));
        assert!(
            is_accepted(&identity, &identity.authorities, HOST, now() - SignedDuration::from_hours(1)),
            "other clocks"
        );
        assert!(is_accepted(&identity, &identity.authorities, HOST, now() + days(89)));
        assert!(!is_accepted(&identity, &identity.authorities, HOST, identity.not_after() + days(1)));
        assert!(!is_accepted(&identity, &identity.authorities, "elsewhere.example.com", now()));
        assert!(!is_accepted(&identity, &issued().authorities, HOST, now()), "another authority");
    }

    #[test]
    fn a_new_certificate_needs_no_renewal_and_an_old_one_does() {
        let identity = issued();
        assert!(!identity.needs_renewal(now()));
        assert!(!identity.needs_renewal(now() + days(59)));
        assert!(identity.needs_renewal(now() + days(61)));
    }

    #[test]
    fn while_replicas_change_over_both_certificates_are_trusted() {
        let first = issued();
        let second = Identity::issued(HOST, Some(&first), now() + days(61)).unwrap();
        let third = Identity::issued(HOST, Some(&second), now() + days(122)).unwrap();
        assert!(is_accepted(&first, &second.authorities, HOST, now() + days(61)));
        assert!(is_accepted(&second, &second.authorities, HOST, now() + days(61)));
        assert!(!is_accepted(&first, &third.authorities, HOST, now() + days(61)), "the bundle does not grow for ever");
        assert!(first.tokens == third.tokens, "the paths stay");
    }

    #[test]
    fn an_identity_is_read_as_it_was_written() {
        let identity = issued();
        let secret = identity.to_secret("lockstep-webhook", None);
        assert!(Identity::read(&secret).unwrap() == identity);
        assert_eq!(secret.type_.as_deref(), Some(TLS_SECRET));
    }

    #[test]
    fn what_cannot_be_served_is_not_read() {
        let good = issued().to_secret("lockstep-webhook", None);
        let with = |name: &str, text: &str| {
            let mut secret = good.clone();
            secret.data.as_mut().unwrap().insert(name.to_owned(), ByteString(text.into()));
            Identity::read(&secret).err().unwrap().to_string()
        };
        assert!(with(CERTIFICATE, "").contains("tls.crt"));
        assert!(with(CERTIFICATE, "garbage").contains("cannot be read"));
        assert!(with(KEY, &issued().key).contains("cannot be used"), "the key of another certificate");
        assert!(with(NOT_AFTER, "soon").contains("not a time"));
        assert!(Identity::read(&Secret::default()).is_err());
    }

    #[test]
    fn tokens_cannot_be_guessed_nor_told_from_each_other() {
        let (one, other) = (issued(), issued());
        let tokens = [&one, &other].map(|identity| [Endpoint::Admit, Endpoint::Configs].map(|of| identity.token(of)));
        let distinct: std::collections::BTreeSet<&str> = tokens.into_iter().flatten().collect();
        assert_eq!(distinct.len(), 4);
        assert!(distinct.iter().all(|token| token.len() == TOKEN_BYTES * 2));
    }
}
