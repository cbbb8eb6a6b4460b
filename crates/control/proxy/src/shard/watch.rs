//! What an operator sees of messages: copies for whoever traces their user.

use sluicegate_sip::message::Message;

use super::context::Context;
use crate::{traces::Hop, transmits::Flow};

impl Context {
    /// A message came. What another shard has handed over it has noted.
    pub(super) fn note_received(&self, flow: Flow, message: &Message<'_>) {
        if self.settings.traces.is_on() && !self.handed_over {
            let own = self.settings.listening(flow.listener);
            let hop = Hop { transport: own.transport, from: flow.peer, to: own.address };
            self.settings.traces.note(self.now.instant, hop, message);
        }
    }

    /// Looks at what was queued to be sent since the last call. A gate's trailer lies behind the message, which says how long
    /// it is.
    pub(super) fn note_sent(&mut self) {
        let Self { settings, out, now, .. } = self;
        for (flow, text) in out.take_new() {
            let own = settings.listening(flow.listener);
            if settings.traces.is_on()
                && let Ok(message) = Message::parse(text)
            {
                let hop = Hop { transport: own.transport, from: own.address, to: flow.peer };
                settings.traces.note(now.instant, hop, &message);
            }
        }
    }
}
