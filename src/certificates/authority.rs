//! The self-managed CA and its serving certificates: what is there, what is due, what to make.
//!
//! Everything is kept in one Secret ([`Material`]). A renewal of the CA takes three writes, each of which holds until the next is safe:
//!
//! ```text
//! nothing ──Everything──▶ CA 1 issues ──two thirds of CA 1──NextCa──▶ CA 2 beside it, trusted, issues nothing
//!                          ▲                                             │ the caBundle has held CA 2 for the overlap
//!                          └───CA 1 ends──Cleaning── CA 2 issues, CA 1 trusted ◀──Promotion
//! ```
//!
//! Invariant: a CA issues nothing before it was in the caBundle for [`Lifetimes::overlap`], save the first of an empty Secret.
//! Invariant: a CA is trusted until it ends, so nothing that it issued is ever served untrusted; its key is gone once it issues no more.
//! Absent on purpose: reading and writing the Secret (`keeper`).

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData};
use rustls::pki_types::ServerName;
use time::OffsetDateTime;

use super::x509::{self, Authority, Span};

/// A CA lives this long.
pub const CA_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// A serving certificate lives this long.
pub const SERVING_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// A new CA is trusted for this long before it issues; API servers learn of a new caBundle within seconds.
pub const OVERLAP: Duration = Duration::from_secs(3600);
/// Clocks of API servers may be behind ours by this much.
const SKEW: i64 = 3600;

/// How long things live.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// See [`CA_LIFE`].
    pub ca: Duration,
    /// See [`SERVING_LIFE`].
    pub serving: Duration,
    /// See [`OVERLAP`].
    pub overlap: Duration,
}

/// Content of the Secret, as PEM texts; empty where nothing is there.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Material {
    /// `ca.crt`: every CA that is trusted.
    pub ca: String,
    /// `ca.key`: key of the CA that issues.
    pub ca_key: String,
    /// `next-ca.key`: key of a CA that is trusted already and will issue next.
    pub next_key: String,
    /// `tls.crt`: the serving certificate.
    pub chain: String,
    /// `tls.key`: its key.
    pub key: String,
}

/// What to do about the [`Material`] now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing before this time.
    Nothing(Timestamp),
    /// No CA can issue: make one, and a serving certificate.
    Everything,
    /// The CA is past two thirds: make the next one, trusted beside it.
    NextCa,
    /// The next CA is known everywhere: it issues from now on.
    Promotion,
    /// The serving certificate is past two thirds, or does not fit.
    Serving,
    /// A CA has ended: leave it out.
    Cleaning,
}

/// Why something could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The maker refused.
    #[error("a certificate cannot be made")]
    Refused(#[from] rcgen::Error),
    /// A name that no certificate can have.
    #[error("{0:?} is no name for a certificate")]
    Name(String),
}

/// For whom and how long certificates are made.
#[derive(Clone, Debug)]
pub struct Wanted {
    names: Vec<String>,
    server_names: Vec<ServerName<'static>>,
    lives: Lifetimes,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { ca: CA_LIFE, serving: SERVING_LIFE, overlap: OVERLAP }
    }
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys must not reach a log by accident.
        f.debug_struct("Material").field("ca", &self.ca).field("chain", &self.chain).finish_non_exhaustive()
    }
}

impl Wanted {
    /// Certificates for these names.
    pub fn new(names: Vec<String>, lives: Lifetimes) -> Result<Self, MakeError> {
        let server_names = names.iter().map(|name| ServerName::try_from(name.clone()).map_err(|_| MakeError::Name(name.clone())));
        Ok(Self { server_names: server_names.collect::<Result<_, _>>()?, names, lives })
    }

    /// The names, as a client asks for them.
    pub(super) fn server_names(&self) -> &[ServerName<'static>] {
        &self.server_names
    }

    /// How long they live.
    pub fn lives(&self) -> Lifetimes {
        self.lives
    }
}

impl Material {
    /// Reads the data of the Secret.
    pub fn from_data(mut data: BTreeMap<String, String>) -> Self {
        let mut take = |key: &str| data.remove(key).unwrap_or_default();
        Self { ca: take("ca.crt"), ca_key: take("ca.key"), next_key: take("next-ca.key"), chain: take("tls.crt"), key: take("tls.key") }
    }

    /// The data of the Secret.
    pub fn data(&self) -> [(&'static str, &str); 5] {
        [("ca.crt", &self.ca), ("ca.key", &self.ca_key), ("next-ca.key", &self.next_key), ("tls.crt", &self.chain), ("tls.key", &self.key)]
    }

    /// What is due now; `trusted` are the caBundles that API servers have, one for each webhook configuration.
    pub fn due(&self, wanted: &Wanted, trusted: &[&str], now: Timestamp) -> Due {
        let (at, all) = (now.as_second(), x509::authorities(&self.ca));
        let living: Vec<Authority> = all.iter().filter(|ca| ca.span.to > at).cloned().collect();
        let Some(issuing) = with_key(&living, &self.ca_key) else { return Due::Everything };
        let next = with_key(&living, &self.next_key);
        match next {
            None if issuing.span.renew_at() <= at => return Due::NextCa,
            Some(next) if wanted.may_issue_at(next) <= at && trusts(trusted, next) => return Due::Promotion,
            _ => {}
        }
        let serving = x509::span(&self.chain).filter(|span| span.renew_at() > at);
        let Some(serving) = serving.filter(|_| self.is_taken(&living, wanted, at)) else { return Due::Serving };
        if living.len() < all.len() {
            return Due::Cleaning;
        }
        let ca = next.map_or(issuing.span.renew_at(), |next| wanted.may_issue_at(next).max(at + 1));
        let ends = living.iter().map(|ca| ca.span.to).min().unwrap_or(ca);
        Due::Nothing(timestamp(ca.min(serving.renew_at()).min(ends)))
    }

    /// Whether clients that trust our CAs take the serving pair for every wanted name now.
    pub fn is_usable(&self, wanted: &Wanted, now: Timestamp) -> bool {
        self.is_taken(&x509::authorities(&self.ca), wanted, now.as_second())
    }

    /// When the serving certificate ends.
    pub fn serving_ends(&self) -> Option<Timestamp> {
        x509::span(&self.chain).map(|span| timestamp(span.to))
    }

    /// The material after what is due was done.
    pub fn after(&self, due: Due, wanted: &Wanted, now: Timestamp) -> Result<Self, MakeError> {
        let at = now.as_second();
        match due {
            Due::Nothing(_) => Ok(self.clone()),
            Due::Everything => {
                let (ca, key) = make_ca(wanted, at)?;
                let renewed = Self { ca: ca + &self.living(at), ca_key: key, next_key: String::new(), ..Self::default() };
                renewed.with_serving(wanted, at)
            }
            Due::NextCa => {
                let (ca, next_key) = make_ca(wanted, at)?;
                Ok(Self { ca: self.living(at) + &ca, next_key, ..self.clone() })
            }
            Due::Promotion => {
                let promoted = Self { ca: self.living(at), ca_key: self.next_key.clone(), next_key: String::new(), ..Self::default() };
                promoted.with_serving(wanted, at)
            }
            Due::Serving => Self { ca: self.living(at), ..self.clone() }.with_serving(wanted, at),
            Due::Cleaning => Ok(Self { ca: self.living(at), ..self.clone() }),
        }
    }

    fn is_taken(&self, roots: &[Authority], wanted: &Wanted, at: i64) -> bool {
        x509::take(&self.chain, &self.key, roots, &wanted.server_names, at).is_ok()
    }

    /// The bundle without CAs that have ended.
    fn living(&self, at: i64) -> String {
        x509::authorities(&self.ca).iter().filter(|ca| ca.span.to > at).map(|ca| x509::pem(&ca.der)).collect()
    }

    fn with_serving(self, wanted: &Wanted, at: i64) -> Result<Self, MakeError> {
        let authorities = x509::authorities(&self.ca);
        let issuing = with_key(&authorities, &self.ca_key).ok_or(rcgen::Error::CouldNotParseCertificate)?;
        let issuer = Issuer::from_ca_cert_der(&issuing.der, KeyPair::from_pem(&self.ca_key)?)?;
        let mut params = CertificateParams::new(wanted.names.clone())?;
        let span = span(wanted.lives.serving, at);
        set_span(&mut params, Span { from: span.from.max(issuing.span.from), to: span.to.min(issuing.span.to) });
        params.distinguished_name.push(DnType::CommonName, "lockstep");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(Self { chain: certificate.pem(), key: key.serialize_pem(), ..self })
    }
}

impl Wanted {
    fn may_issue_at(&self, ca: &Authority) -> i64 {
        ca.span.from + skew(self.lives.ca) + seconds(self.lives.overlap)
    }
}

fn make_ca(wanted: &Wanted, at: i64) -> Result<(String, String), MakeError> {
    let mut params = CertificateParams::new(Vec::new())?;
    set_span(&mut params, span(wanted.lives.ca, at));
    params.distinguished_name.push(DnType::CommonName, format!("lockstep CA {}", timestamp(at)));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

fn with_key<'a>(authorities: &'a [Authority], key_pem: &str) -> Option<&'a Authority> {
    let public_key = KeyPair::from_pem(key_pem).ok()?.subject_public_key_info();
    authorities.iter().find(|ca| ca.public_key == public_key)
}

fn trusts(bundles: &[&str], ca: &Authority) -> bool {
    !bundles.is_empty() && bundles.iter().all(|bundle| x509::holds(bundle, ca))
}

/// A life from now on, begun a little earlier for clocks that are behind.
fn span(life: Duration, at: i64) -> Span {
    Span { from: at - skew(life), to: at + seconds(life) }
}

/// Never more than a tenth of a life, so that a short one still has its two thirds ahead.
fn skew(life: Duration) -> i64 {
    SKEW.min(seconds(life) / 10)
}

fn set_span(params: &mut CertificateParams, span: Span) {
    let time = |at: i64| OffsetDateTime::from_unix_timestamp(at).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    (params.not_before, params.not_after) = (time(span.from), time(span.to));
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX / 4)
}

fn timestamp(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    fn at(days: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + days * DAY).unwrap()
    }

    fn wanted() -> Wanted {
        Wanted::new(vec!["lockstep.lockstep-system.svc".into(), "127.0.0.1".into()], Lifetimes::default()).unwrap()
    }

    fn fresh() -> Material {
        Material::default().after(Due::Everything, &wanted(), at(0)).unwrap()
    }

    /// Does what is due until nothing is, as a replica would whose caBundle follows at once.
    fn settle(mut material: Material, now: Timestamp) -> Material {
        for _ in 0..5 {
            let due = material.due(&wanted(), &[&material.ca], now);
            if let Due::Nothing(next) = due {
                assert!(next > now, "{next}");
                return material;
            }
            material = material.after(due, &wanted(), now).unwrap();
        }
        panic!("it does not settle: {:?}", material.due(&wanted(), &[&material.ca], now));
    }

    #[test]
    fn an_empty_secret_wants_everything_and_then_nothing_until_two_thirds() {
        assert_eq!(Material::default().due(&wanted(), &[], at(0)), Due::Everything);
        let made = fresh();
        assert!(made.is_usable(&wanted(), at(0)));
        let Due::Nothing(next) = made.due(&wanted(), &[], at(0)) else { panic!() };
        let days = (next.as_second() - at(0).as_second()) as f64 / DAY as f64;
        assert!((4.5..4.7).contains(&days), "{days}");
    }

    #[test]
    fn the_serving_certificate_is_renewed_by_the_same_ca() {
        let made = fresh();
        assert_eq!(made.due(&wanted(), &[], at(5)), Due::Serving);
        let renewed = made.after(Due::Serving, &wanted(), at(5)).unwrap();
        assert_eq!((&renewed.ca, &renewed.ca_key), (&made.ca, &made.ca_key));
        assert_ne!(renewed.chain, made.chain);
        assert!(renewed.is_usable(&wanted(), at(11)));
    }

    #[test]
    fn another_name_wants_another_certificate() {
        let more = Wanted::new(vec!["lockstep.lockstep-system.svc".into(), "more.example".into()], Lifetimes::default()).unwrap();
        assert_eq!(fresh().due(&more, &[], at(0)), Due::Serving);
        assert!(fresh().after(Due::Serving, &more, at(0)).unwrap().is_usable(&more, at(0)));
    }

    #[test]
    fn a_new_ca_is_trusted_before_it_issues_and_the_old_one_until_it_ends() {
        let old = settle(fresh(), at(240));
        assert_eq!(old.due(&wanted(), &[&old.ca], at(245)), Due::NextCa);
        let both = settle(old.after(Due::NextCa, &wanted(), at(245)).unwrap(), at(245));
        assert!(both.ca.len() > old.ca.len() && both.ca_key == old.ca_key, "the old one still issues");
        assert_ne!(both.due(&wanted(), &[&old.ca], at(246)), Due::Promotion, "the caBundle does not hold it yet");
        assert_ne!(both.due(&wanted(), &[&both.ca, &old.ca], at(246)), Due::Promotion, "one of two caBundles does not hold it yet");
        assert_eq!(both.due(&wanted(), &[&both.ca], at(246)), Due::Promotion);
        let promoted = settle(both.after(Due::Promotion, &wanted(), at(246)).unwrap(), at(246));
        assert_eq!(promoted.ca_key, both.next_key);
        assert_eq!(promoted.next_key, "");
        let old_pair = Material { chain: both.chain.clone(), key: both.key.clone(), ..promoted.clone() };
        assert!(old_pair.is_usable(&wanted(), at(246)), "what a slower replica still serves is trusted");
        let later = settle(promoted, at(366));
        assert_eq!(x509::authorities(&later.ca).len(), 1, "the old one has ended");
        assert!(later.is_usable(&wanted(), at(366)));
    }

    #[test]
    fn years_of_days_never_leave_a_day_without_a_usable_certificate() {
        let mut material = fresh();
        for day in 0..1200 {
            material = settle(material, at(day));
            assert!(material.is_usable(&wanted(), at(day)), "day {day}");
            assert!(x509::authorities(&material.ca).len() <= 2);
        }
    }

    #[test]
    fn a_machine_that_slept_for_years_makes_everything_anew() {
        assert_eq!(fresh().due(&wanted(), &[], at(4000)), Due::Everything);
        let renewed = settle(fresh(), at(4000));
        assert!(renewed.is_usable(&wanted(), at(4000)));
    }

    #[test]
    fn damaged_material_is_made_anew() {
        let good = fresh();
        let other = fresh();
        let cases = [
            (Material { ca: "odd".into(), ..good.clone() }, Due::Everything),
            (Material { ca_key: other.ca_key.clone(), ..good.clone() }, Due::Everything),
            (Material { ca_key: String::new(), ..good.clone() }, Due::Everything),
            (Material { chain: "odd".into(), ..good.clone() }, Due::Serving),
            (Material { key: other.key.clone(), ..good.clone() }, Due::Serving),
            (Material { chain: other.chain.clone(), key: other.key.clone(), ..good.clone() }, Due::Serving),
        ];
        for (damaged, due) in cases {
            assert_eq!(damaged.due(&wanted(), &[], at(1)), due);
            assert!(settle(damaged, at(1)).is_usable(&wanted(), at(1)));
        }
    }

    #[test]
    fn lifetimes_of_a_minute_work_too() {
        let lives = Lifetimes { ca: Duration::from_secs(60), serving: Duration::from_secs(20), overlap: Duration::from_secs(5) };
        let wanted = Wanted::new(vec!["localhost".into()], lives).unwrap();
        let mut material = Material::default();
        let mut cas = std::collections::BTreeSet::new();
        for second in 0..300 {
            let now = Timestamp::from_second(1_800_000_000 + second).unwrap();
            for _ in 0..4 {
                material = material.after(material.due(&wanted, &[&material.ca], now), &wanted, now).unwrap();
            }
            assert!(material.is_usable(&wanted, now), "second {second}");
            cas.insert(material.ca_key.clone());
        }
        assert!((5..=9).contains(&cas.len()), "{}", cas.len());
    }

    #[test]
    fn a_name_that_cannot_be_is_refused() {
        assert!(Wanted::new(vec!["not a name".into()], Lifetimes::default()).is_err());
    }

    #[test]
    fn keys_are_not_shown() {
        let shown = format!("{:?}", fresh());
        assert!(shown.contains("BEGIN CERTIFICATE") && !shown.contains("PRIVATE"));
    }
}
