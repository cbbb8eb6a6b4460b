//! This host in another network: the way out of captured packets is looked for again and again, and who needs to know is
//! told of another one.

use std::{sync::Arc, time::Duration};

use sluicegate_netlink::Rtnetlink;
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

use super::{
    CaptureError, Config,
    engine::Wire,
    orders::{Order, Orders},
    place::{Outward, let_answers_in},
    settings::Settings,
    shield::Shield,
};

/// How often the way out is looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Another way out, and sockets there.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) outward: Outward,
    pub(super) headers: Wire,
    /// Of plain packets, where these leave by the same interface.
    pub(super) plain: Option<Wire>,
}

/// Looks for the way out.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) config: Config,
    pub(super) outward: Outward,
    /// The device by which captured packets come, if it is this host's and so no way out.
    pub(super) tun: Option<String>,
    pub(super) orders: Orders,
    /// By which the sessions' own packets leave.
    pub(super) interface: watch::Sender<String>,
    pub(super) shield: Option<Arc<Shield>>,
}

impl Follower {
    /// Works until it is aborted.
    pub(super) async fn run(mut self) {
        // Of each move that changed some, as each has a helper of its own: at most a few for each interface.
        let mut changed: Vec<Settings> = Vec::new();
        let mut refused = None;
        loop {
            sleep(LOOK_INTERVAL).await;
            // Between two networks there is no way out at all.
            let Ok(outward) = Outward::find_again(&self.config, &self.outward, self.tun.as_deref()) else { continue };
            if outward == self.outward {
                continue;
            }
            let mut settings = Settings::default();
            let opened = self.open(&outward, &mut settings);
            if !settings.is_empty() {
                changed.push(settings);
            }
            match opened {
                Ok(moved) => {
                    refused = None;
                    info!(
                        interface = outward.interface,
                        v4 = outward.v4.map(tracing::field::display),
                        v6 = outward.v6.map(tracing::field::display),
                        "this host is in another network: captured connections to services go on from there"
                    );
                    self.outward = outward;
                    if let Some(shield) = &self.shield {
                        shield.set_interface(&self.outward.interface);
                    }
                    self.interface.send_if_modified(|known| {
                        let is_other = *known != self.outward.interface;
                        known.clone_from(&self.outward.interface);
                        is_other
                    });
                    if !self.orders.send(Order::Moved(Box::new(moved))) {
                        return;
                    }
                }
                Err(error) => {
                    if refused.as_ref() != Some(&outward) {
                        warn!(%error, interface = outward.interface, "cannot capture by another way out; trying on");
                    }
                    refused = Some(outward);
                }
            }
        }
    }

    fn open(&self, outward: &Outward, settings: &mut Settings) -> Result<Moved, CaptureError> {
        let headers = Wire::headers(&outward.interface)?;
        let plain = match &self.tun {
            Some(tun) => {
                let_answers_in(settings, &[tun, &outward.interface]);
                if outward.v6.is_some() && self.outward.v6.is_none() {
                    settings.rule(&mut Rtnetlink::open()?, true)?;
                }
                settings.guard();
                Some(Wire::plain(&outward.interface)?)
            }
            None => None,
        };
        Ok(Moved { outward: outward.clone(), headers, plain })
    }
}
