//! The identity that is served right now; it can be changed while connections are open.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificates::{Endpoint, Identity, IdentityError};

#[derive(Default)]
pub struct Serving(ArcSwapOption<InUse>);

struct InUse {
    identity: Identity,
    certified: Arc<CertifiedKey>,
}

impl Serving {
    pub fn is_empty(&self) -> bool {
        self.0.load().is_none()
    }

    pub fn identity(&self) -> Option<Identity> {
        self.0.load().as_ref().map(|in_use| in_use.identity.clone())
    }

    pub fn set(&self, identity: &Identity) -> Result<(), IdentityError> {
        if self.0.load().as_ref().is_some_and(|in_use| in_use.identity == *identity) {
            return Ok(());
        }
        let certified = Arc::new(identity.certified_key()?);
        self.0.store(Some(Arc::new(InUse { identity: identity.clone(), certified })));
        tracing::info!(expires = %identity.not_after(), "the webhook's certificate is in use");
        Ok(())
    }

    /// Whether the caller knows the path that only the API server was told. Takes as long for a wrong guess as for a nearly right one.
    pub fn is_token(&self, endpoint: Endpoint, guess: &str) -> bool {
        let in_use = self.0.load();
        let Some(token) = in_use.as_ref().map(|in_use| in_use.identity.token(endpoint).as_bytes()) else {
            return false;
        };
        let difference = token.iter().zip(guess.as_bytes()).fold(0, |all, (one, other)| all | (one ^ other));
        token.len() == guess.len() && difference == 0
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().as_ref().map(|in_use| Arc::clone(&in_use.certified))
    }
}

/// rustls asks for it; a key must not be in it.
impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_opens() {
        let serving = Serving::default();
        assert!(!serving.is_token(Endpoint::Admit, ""), "before there is one");
        let identity = Identity::issued("host", None, jiff::Timestamp::UNIX_EPOCH).unwrap();
        serving.set(&identity).unwrap();
        let token = identity.token(Endpoint::Admit);
        assert!(serving.is_token(Endpoint::Admit, token));
        assert!(!serving.is_token(Endpoint::Configs, token), "each endpoint has its own");
        for guess in ["", "x", &token[1..], &format!("{token}0")] {
            assert!(!serving.is_token(Endpoint::Admit, guess), "{guess}");
        }
        assert!(!format!("{serving:?}").contains(token));
    }
}
