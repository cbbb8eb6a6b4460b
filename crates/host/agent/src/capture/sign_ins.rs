//! Signs in for services as packets ask for them, and keeps what was opened.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sluicegate_grant::DataMode;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tracing::{info, warn};

use super::{
    SignIn,
    orders::{Order, Orders},
    redirects::Target,
    shield::Shield,
};
use crate::{frontends::Frontends, session::Session};

/// Sign-ins that wait to be started.
pub(super) const ASKS_MAX: usize = 256;
/// How long the goodbyes may take at the end.
const GOODBYE: Duration = Duration::from_secs(3);

/// Holds one session for each entry that names a service.
#[derive(Debug)]
pub(super) struct SignIns {
    /// By which their own packets leave.
    pub(super) interface: watch::Receiver<String>,
    pub(super) frontends: Frontends,
    /// By entry.
    pub(super) services: Vec<Option<SignIn>>,
    pub(super) orders: Orders,
    pub(super) shield: Arc<Shield>,
}

impl SignIns {
    /// Works until nobody asks any more, then says goodbye everywhere.
    pub(super) async fn run(self, mut asks: mpsc::Receiver<Target>) {
        let mut sessions: HashMap<usize, (Session, JoinHandle<()>)> = HashMap::new();
        while let Some(target) = asks.recv().await {
            let Some(service) = self.services.get(target.entry).cloned().flatten() else { continue };
            if let std::collections::hash_map::Entry::Vacant(place) = sessions.entry(target.entry) {
                let interface = Some(self.interface.clone());
                // All that is captured leaves with a header, so a gate need take nothing else.
                let wish = (service.service.as_str(), DataMode::Capability);
                match Session::start(interface, self.frontends.clone(), service.account, None, wish).await {
                    Ok(started) => {
                        place.insert(started);
                    }
                    Err(error) => {
                        warn!(%error, "cannot open a socket for a sign-in");
                        self.orders.send(Order::Refused(target));
                        continue;
                    }
                }
            }
            if let Some((session, _)) = sessions.get(&target.entry) {
                let shield = Arc::clone(&self.shield);
                tokio::spawn(open(session.clone(), target, self.orders.clone(), shield));
            }
        }
        let keepers: Vec<JoinHandle<()>> = sessions.into_values().map(|(_, keeper)| keeper).collect();
        let goodbyes = async {
            for keeper in keepers {
                let _ = keeper.await;
            }
        };
        let _ = tokio::time::timeout(GOODBYE, goodbyes).await;
    }
}

/// Opens one port of a service and reports what becomes of it, until it closes.
async fn open(session: Session, target: Target, orders: Orders, shield: Arc<Shield>) {
    let mut opening = session.opening();
    let port = target.to.port();
    let mut reach = match session.reach(target.protocol, port).await {
        Ok(reach) => reach,
        Err(error) => {
            warn!(to = %target.to, protocol = %target.protocol, error, "not opened");
            orders.send(Order::Refused(target));
            return;
        }
    };
    // The session ends with its last user, and this task only watches.
    drop(session);
    info!(to = %target.to, protocol = %target.protocol, gate = %reach.address, "captured traffic goes to the gate");
    shield.set(target, Some(reach.address));
    orders.send(Order::Opened(target, reach.clone()));
    while opening.changed().await.is_ok() {
        let now = opening.borrow_and_update().reach(target.protocol, port);
        match now {
            Some(now) if now == reach => {}
            Some(now) => {
                reach = now;
                shield.set(target, Some(reach.address));
                orders.send(Order::Opened(target, reach.clone()));
            }
            None => break,
        }
    }
    shield.set(target, None);
    orders.send(Order::Closed(target));
}
