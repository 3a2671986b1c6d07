//! Where the serving certificate comes from, and the caBundle that vouches for it.
//!
//! Two sources behind one type. Self-managed: a CA and short serving certificates in one Secret, which every replica may renew; writes
//! name the version that was read, so that two replicas cannot both win, and the other replicas follow by a watch.
//! Files: a pair and its CA that somebody else renews (cert-manager, a private PKI), mounted from a Secret and read again when they change.
//!
//! Invariant: a certificate is served only while the caBundle that we wrote holds its CA, save the very first.
//! Invariant: renewal looks at the wall clock, so that a machine that slept notices.
//! Absent on purpose: a leader; any replica that sees something due does it.

pub mod authority;
pub mod bundle;
pub mod callers;
pub mod files;
pub mod keeper;
pub mod pair;
pub mod serving;
mod x509;

use tokio::sync::watch;

use self::bundle::Seen;
use self::files::Files;
use self::keeper::Keeper;
pub use self::serving::Serving;

/// Where the serving certificate comes from.
pub enum Source {
    /// Our own CA, in a Secret.
    SelfManaged(Keeper),
    /// Files that somebody else renews.
    Files(Files),
}

impl Source {
    /// Runs for good; publishes the CAs to trust, and waits for each webhook configuration of `seen` before a new CA is relied on.
    pub async fn run(self, bundle: watch::Sender<Option<String>>, seen: Vec<watch::Receiver<Seen>>) {
        match self {
            Self::SelfManaged(keeper) => keeper.run(bundle, seen).await,
            Self::Files(files) => files.run(bundle, seen).await,
        }
    }
}
