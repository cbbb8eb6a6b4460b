//! A session where no UDP passes: it signs in over TLS, and each of its grants has a tunnel to the gate.

use std::{net::SocketAddr, sync::Arc};

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Call, CallError, ExchangeError, Fallback, Keeper, PROBE_INTERVAL};

impl Keeper {
    /// Goes on over TLS, if it was said how and a frontend shows a certificate that is known.
    pub(super) async fn fall_back(&mut self) -> bool {
        let Some(Fallback { trust, sip_port, .. }) = self.fallback.clone() else { return false };
        let interface = self.leaves_by();
        for frontend in self.frontends.all().map(|frontend| SocketAddr::new(frontend.ip(), sip_port)) {
            match self.endpoint.fall_back(interface.as_deref(), frontend, &trust).await {
                Ok(()) => {
                    if !self.is_fallen_back {
                        warn!(%frontend, "no frontend answers over UDP, so this goes on over TLS, SIP and data");
                        self.tell("over TLS, SIP and data: no frontend answers over UDP");
                    }
                    (self.is_fallen_back, self.probed_at) = (true, Instant::now());
                    return true;
                }
                Err(error) => {
                    debug!(%frontend, %error, "no SIP over TLS");
                    self.tls_failed = Some(format!("{frontend}: {error}"));
                }
            }
        }
        false
    }

    pub(super) fn tell(&self, over: &str) {
        if let Some(fallback) = &self.fallback {
            (fallback.told)(over);
        }
    }

    /// What to tell a person of a sign-in that failed.
    pub(super) fn explained(&mut self, error: CallError) -> String {
        match (error.is_unanswered(), self.tls_failed.take()) {
            (true, Some(failed)) => ExchangeError::Unreached(failed).to_string(),
            _ => error.to_string(),
        }
    }

    /// Opens the tunnel of a call.
    pub(super) async fn tunnel(&self, call: &Call) -> Result<(), String> {
        let Some(Fallback { trust, tunnel: Some(gate), .. }) = &self.fallback else {
            return Err("no UDP passes here, and there is no tunnel for data: give the address of the gate's (--tunnel, `tunnel` in \
                        its [gate])"
                .to_owned());
        };
        let Some(sealer) = &call.open.seal else { return Err("the grant has no key".to_owned()) };
        let tunnel = sealer.open_tunnel(self.leaves_by().as_deref(), *gate, trust).await;
        let tunnel = tunnel.map_err(|error| format!("the gate's tunnel at {gate} cannot be used: {error}"))?;
        debug!(%gate, address = %tunnel.address, "packets go through a tunnel");
        sealer.goes_by(Some(Arc::new(tunnel)));
        Ok(())
    }

    /// Opens tunnels again that have ended.
    pub(super) async fn tunnel_again(&self) {
        if !self.is_fallen_back {
            return;
        }
        let has_none = |call: &&Call| {
            call.open.seal.as_ref().is_some_and(|sealer| sealer.tunnel().is_none_or(|tunnel| tunnel.has_ended()))
        };
        for call in self.calls.iter().filter(has_none) {
            if let Err(error) = self.tunnel(call).await {
                debug!(error, "no tunnel");
                call.open.seal.iter().for_each(|sealer| sealer.is_refused());
            }
        }
    }

    /// Looks now and then whether UDP passes again, and then goes back to it: as soon as no connection stands, as those of a
    /// tunnel would end.
    pub(super) async fn look_for_udp(&mut self) {
        if !self.is_fallen_back {
            return;
        }
        let interface = self.leaves_by();
        if let Some(probe) = self.probe.take_if(|probe| probe.is_finished()) {
            self.probed_at = Instant::now();
            let answering = probe.await.ok().flatten();
            if let Some(frontend) = answering.filter(|_| !self.stands())
                && self.endpoint.fail_over(interface.as_deref(), frontend).await.is_ok()
            {
                info!(%frontend, "a frontend answers over UDP again, so this goes on over UDP");
                self.is_fallen_back = false;
                self.tell("over UDP");
                self.calls.iter_mut().for_each(Call::moved);
                self.calls.iter().filter_map(|call| call.open.seal.as_ref()).for_each(|sealer| sealer.goes_by(None));
                self.moves += 1;
                self.publish();
                self.prove();
                self.renew().await;
            }
        }
        if self.is_fallen_back && self.probe.is_none() && self.probed_at.elapsed() >= PROBE_INTERVAL {
            let frontends = self.frontends.clone();
            self.probe = Some(tokio::spawn(async move { frontends.answering(interface.as_deref(), None).await }));
        }
    }
}
