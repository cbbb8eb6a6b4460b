//! The PBX of the book: Kamailio and rtpengine on the service's host, with the very files that the book shows, and an
//! extension, a telephone of the house.

use super::{
    lab::{Lab, SERVICE},
    program::Program,
    softphone::{Account, Softphone},
};

/// The programs that it is made of.
pub(crate) const PROGRAMS: &[&str] = &["kamailio", "rtpengine", "baresip", "unshare"];
/// The files of the book.
const KAMAILIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pbx/kamailio.cfg");
const RTPENGINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pbx/rtpengine.conf");

/// A running PBX, and its extension 600.
#[derive(Debug)]
pub(crate) struct StockPbx {
    pub(crate) kamailio: Program,
    pub(crate) rtpengine: Program,
    /// Extension 600, which answers by itself.
    pub(crate) desk: Softphone,
}

impl StockPbx {
    /// Starts it, ready for calls.
    pub(crate) fn start(lab: &Lab) -> Self {
        Self::start_with(lab, KAMAILIO)
    }

    /// Starts one that knows UDP alone, ready for calls.
    pub(crate) fn start_over_udp(lab: &Lab) -> Self {
        let (config, path) = (std::fs::read_to_string(KAMAILIO).expect("the book's file"), lab.path("kamailio.cfg"));
        let is_udp = |line: &&str| !["listen=tcp", "udp_mtu"].iter().any(|start| line.starts_with(start));
        let lines: Vec<&str> = config.lines().filter(is_udp).collect();
        assert_eq!(lines.len() + 3, config.lines().count(), "a listener, a size, and what to do about it");
        std::fs::write(&path, lines.join("\n").replacen("listen=udp", "disable_tcp=yes\nlisten=udp", 1))
            .expect("a file");
        Self::start_with(lab, &path.display().to_string())
    }

    fn start_with(lab: &Lab, kamailio_cfg: &str) -> Self {
        let more = ["-f", "-E", "--num-threads=1", "--log-level=6"];
        let config = format!("--config-file={RTPENGINE}");
        let rtpengine = Program::start(lab, "service", "rtpengine", "rtpengine", &[&[&config[..]], &more[..]].concat());
        rtpengine.says("Startup complete");
        // Kamailio's processes do not end with the first of them, but with its namespace.
        let dir = lab.path("kamailio");
        std::fs::create_dir(&dir).expect("a directory");
        let run = dir.display().to_string();
        let daemon = ["kamailio", "-DD", "-E", "-f", kamailio_cfg, "-Y", &run, "-m", "32", "-M", "4"];
        let contained = [&["--fork", "--pid", "--kill-child"], &daemon[..]].concat();
        let kamailio = Program::start(lab, "service", "kamailio", "unshare", &contained);
        kamailio.says("rtpengine instance <udp:127.0.0.1:2223> found");
        let place = ("service", SERVICE.into());
        let server = (SERVICE, 5060).into();
        let account =
            Account { place, port: 5070, user: "600", server, transport: "udp", registers: true, answers: true };
        let desk = Softphone::start(lab, &account);
        desk.registered();
        Self { kamailio, rtpengine, desk }
    }
}
