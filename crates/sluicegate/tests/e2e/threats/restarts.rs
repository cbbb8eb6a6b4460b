//! A router that is killed while a transfer and a stream pass it.

use std::{
    fs,
    io::{Read, Write},
    net::UdpSocket,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sluicegate_wire::capability::Repr;

use super::site::{CLIENT, Count, SERVICE, Site, TCP_PORT, UDP_PORT, header};
use crate::support::{capture::Capture, let_run, until};

const TICK: Duration = Duration::from_millis(5);
const OUTAGE: Duration = Duration::from_millis(300);
/// The transfer: a piece every so often, so that the link is never full.
const PIECE: usize = 8_192;
const PIECE_TICK: Duration = Duration::from_millis(10);
const PIECES: usize = 500;

/// Numbered datagrams to a service that sends each back.
struct Stream {
    stop: Arc<AtomicBool>,
    /// What has reached the service, and what has come back, with its round trip.
    there: Arc<Mutex<Vec<(Instant, u32)>>>,
    back: Arc<Mutex<Vec<Duration>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    fn start(site: &Site) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (there, back) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let service = site.lab.udp("service", SERVICE, UDP_PORT);
        let client = site.lab.udp("client", CLIENT, UDP_PORT);
        let (flag, noted) = (Arc::clone(&stop), Arc::clone(&there));
        let echo = thread::spawn(move || answer(&service, &flag, &noted));
        let (flag, noted) = (Arc::clone(&stop), Arc::clone(&back));
        let ask = thread::spawn(move || ask(&client, &flag, &noted));
        Self { stop, there, back, threads: vec![echo, ask] }
    }

    /// The numbers that have arrived since.
    fn since(&self, from: Instant) -> Vec<u32> {
        let there = self.there.lock().expect("not poisoned");
        there.iter().filter(|(at, _)| *at >= from).map(|(_, number)| *number).collect()
    }

    fn median_round_trip(&self) -> Duration {
        let mut times = self.back.lock().expect("not poisoned").clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("the stream ends"));
    }
}

fn answer(socket: &UdpSocket, stop: &AtomicBool, noted: &Mutex<Vec<(Instant, u32)>>) {
    socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let mut bytes = [0; 1_500];
    while !stop.load(Ordering::Relaxed) {
        let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
        let Some(number) = bytes.first_chunk::<4>() else { continue };
        noted.lock().expect("not poisoned").push((Instant::now(), u32::from_be_bytes(*number)));
        let _ = socket.send_to(&bytes[..len], from);
    }
}

fn ask(socket: &UdpSocket, stop: &AtomicBool, noted: &Mutex<Vec<Duration>>) {
    socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
    let (mut number, mut next, mut bytes) = (0_u32, Instant::now(), [0; 1_500]);
    let mut sent = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if Instant::now() >= next {
            next += TICK;
            let mut datagram = vec![0x5a; 400];
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            sent.push(Instant::now());
            let _ = socket.send_to(&datagram, (SERVICE, UDP_PORT));
            number += 1;
        }
        while socket.recv_from(&mut bytes).is_ok() {
            let answered = bytes.first_chunk::<4>().map_or(0, |number| u32::from_be_bytes(*number) as usize);
            if let Some(at) = sent.get(answered) {
                noted.lock().expect("not poisoned").push(at.elapsed());
            }
        }
    }
}

/// A transfer over TCP, in pieces: whether all of it arrived.
fn transfer(site: &Site) -> JoinHandle<bool> {
    let listener = site.lab.listen("service", SERVICE, TCP_PORT);
    let received = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let (mut total, mut bytes) = (0, vec![0; 1 << 16]);
        while let Ok(len @ 1..) = stream.read(&mut bytes) {
            total += len;
        }
        total
    });
    let mut stream = site.lab.connect("client", (SERVICE, TCP_PORT).into()).expect("a connection");
    thread::spawn(move || {
        let mut next = Instant::now();
        for _ in 0..PIECES {
            next += PIECE_TICK;
            thread::sleep(next.saturating_duration_since(Instant::now()));
            if stream.write_all(&[0x77; PIECE]).is_err() {
                return false;
            }
        }
        drop(stream);
        received.join().expect("the service reads on") == PIECE * PIECES
    })
}

pub(super) fn keeps_its_secrets(datapath: &'static str) {
    killed(datapath, false);
}

pub(super) fn forgets(datapath: &'static str) {
    killed(datapath, true);
}

fn killed(datapath: &'static str, forgets: bool) {
    let mut site = Site::new(datapath, 20);
    let transfer = transfer(&site);
    let mut stream = Stream::start(&site);
    until("the flow is cached", || (Count::of(&site.r1).regular > 200).then_some(()));
    let round_trip = stream.median_round_trip();

    site.kill_r1();
    let killed = Instant::now();
    if forgets {
        fs::remove_file(site.lab.path("r1.state").join("gate/router.seed")).expect("the secrets were there");
    }
    let_run(OUTAGE);
    assert!(stream.since(killed + Duration::from_millis(100)).is_empty(), "a dead router forwards nothing");
    // Behind the router, in both directions.
    let there = Capture::start(&site.lab, ("site", "to_gate"), |seen| seen.from == CLIENT && seen.protocol == 253);
    let back = Capture::start(&site.lab, ("snoop", "to_r1"), |seen| seen.from == SERVICE && seen.protocol == 253);
    site.restart_r1();
    until("the stream flows again", || (!stream.since(killed + OUTAGE).is_empty()).then_some(()));
    let_run(Duration::from_secs(2));

    let numbers = stream.since(killed + OUTAGE);
    let missing = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    let counted = Count::of(&site.r1);
    let again = [reacquired(&there), reacquired(&back)];
    println!(
        "killed router (forgets: {forgets}): {} datagrams after the restart, {missing} gaps, {} packets demoted, of \
         which {} forged; regular again {again:?} after the first demoted one, round trip {round_trip:?}",
        numbers.len(),
        counted.demoted,
        counted.forged,
    );
    assert!(numbers.len() > 50, "{}", numbers.len());
    assert_eq!(missing, 0, "demoted packets pass an idle link");
    assert!(counted.demoted > 0 && counted.regular > 100, "{counted:?}");
    assert!(forgets || counted.forged == 0, "{counted:?}");
    assert!(transfer.join().expect("the transfer ends"), "the transfer is complete");
    stream.end();
    // Two round trips, and what a loaded machine and a few packets in a hundredth of a second add.
    let limit = 2 * round_trip + Duration::from_millis(100);
    assert!(again.iter().flatten().count() > 0 && again.iter().flatten().all(|again| *again <= limit), "{again:?}");
}

/// From the first demoted packet to the first one that is regular again.
fn reacquired(capture: &Capture) -> Option<Duration> {
    let mut demoted_ns = None;
    for seen in capture.seen() {
        let Some(Repr::Regular { demoted, .. }) = header(&seen) else { continue };
        match (demoted, demoted_ns) {
            (true, None) => demoted_ns = Some(seen.at_ns),
            (false, Some(first_ns)) => return Some(Duration::from_nanos(seen.at_ns - first_ns)),
            _ => {}
        }
    }
    None
}
