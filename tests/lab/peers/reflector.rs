//! A vhost-user network peer of rust-vmm's crates: every frame goes back as it came.
//!
//! `reflector back-end SOCKET` serves one front-end after another by `vhost-user-backend` and `virtio-queue`; it says how each has ended.
//! `reflector front-end SOCKET` connects by `vhost`'s `Frontend`, with rings that are written here, until its stdin ends; then it stops
//! the rings, prints their bases, and asks for what is not offered.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{fence, AtomicU16, Ordering};
use std::sync::{Arc, RwLock};

use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::{QueueOwnedT, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

const EVENT_IDX: u64 = 1 << 29;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
const IN_ORDER: u64 = 1 << 35;
const RX: usize = 0;
const TX: usize = 1;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// The device: frames of the transmit queue wait until the receive queue has a buffer for them.
struct Reflector {
    memory: Memory,
    waiting: VecDeque<Vec<u8>>,
    exit: EventFd,
}

impl Reflector {
    fn take(&mut self, vring: &VringRwLock) -> io::Result<()> {
        let memory = self.memory.memory();
        let mut state = vring.get_mut();
        let chains: Vec<_> = state.get_queue_mut().iter(memory.clone()).map_err(io::Error::other)?.collect();
        for chain in chains {
            let head = chain.head_index();
            let mut frame = Vec::new();
            chain.reader(&memory).map_err(io::Error::other)?.read_to_end(&mut frame)?;
            self.waiting.push_back(frame);
            state.add_used(head, 0).map_err(io::Error::other)?;
        }
        notify(&mut state)
    }

    fn give(&mut self, vring: &VringRwLock) -> io::Result<()> {
        let memory = self.memory.memory();
        let mut state = vring.get_mut();
        while !self.waiting.is_empty() {
            let Some(chain) = state.get_queue_mut().pop_descriptor_chain(memory.clone()) else { break };
            let head = chain.head_index();
            let mut frame = self.waiting.pop_front().unwrap_or_default();
            frame[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
            chain.writer(&memory).map_err(io::Error::other)?.write_all(&frame)?;
            state.add_used(head, frame.len() as u32).map_err(io::Error::other)?;
        }
        notify(&mut state)
    }
}

fn notify(state: &mut vhost_user_backend::VringState) -> io::Result<()> {
    if state.needs_notification().map_err(io::Error::other)? {
        state.signal_used_queue()?;
    }
    Ok(())
}

impl VhostUserBackendMut for Reflector {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        2
    }

    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        VERSION_1 | PROTOCOL_FEATURES | EVENT_IDX
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    fn update_memory(&mut self, memory: Memory) -> io::Result<()> {
        self.memory = memory;
        self.waiting.clear();
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<EventFd> {
        self.exit.try_clone().ok()
    }

    fn handle_event(&mut self, _event: u16, _set: EventSet, vrings: &[VringRwLock], _thread: usize) -> io::Result<()> {
        self.take(&vrings[TX])?;
        self.give(&vrings[RX])
    }
}

fn back_end(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    loop {
        let memory = Memory::new(GuestMemoryMmap::new());
        let exit = EventFd::new(EFD_NONBLOCK)?;
        let device = Reflector { memory: memory.clone(), waiting: VecDeque::new(), exit };
        let mut daemon = VhostUserDaemon::new("reflector".into(), Arc::new(RwLock::new(device)), memory).map_err(|error| error.to_string())?;
        println!("{}", match daemon.serve(path) {
            Ok(()) => "hung up".into(),
            Err(error) => error.to_string(),
        });
    }
}

const SIZE: u16 = 256;
const ROOM: usize = 2048;
const DESCRIPTORS: usize = 0;
const AVAILABLE: usize = 4096;
const USED: usize = 8192;
const BUFFERS: usize = 12288;
const RING: usize = BUFFERS + SIZE as usize * ROOM;

/// A split virtqueue (virtio 1.2, 2.7) whose buffer number n belongs to descriptor n.
struct Ring {
    memory: *mut u8,
    address: u64,
    posted: u16,
    used: u16,
}

impl Ring {
    fn buffer(&self, index: u16) -> *mut u8 {
        unsafe { self.memory.add(BUFFERS + index as usize * ROOM) }
    }

    fn index_at(&self, offset: usize) -> &AtomicU16 {
        unsafe { &*(self.memory.add(offset + 2) as *const AtomicU16) }
    }

    fn post(&mut self, descriptor: u16, length: u32, writable: bool) {
        unsafe {
            let entry = self.memory.add(DESCRIPTORS + 16 * descriptor as usize);
            (entry as *mut u64).write_volatile(self.address + (BUFFERS + descriptor as usize * ROOM) as u64);
            (entry.add(8) as *mut u32).write_volatile(length);
            (entry.add(12) as *mut u16).write_volatile(if writable { 2 } else { 0 });
            (self.memory.add(AVAILABLE + 4 + 2 * (self.posted % SIZE) as usize) as *mut u16).write_volatile(descriptor);
        }
        self.posted = self.posted.wrapping_add(1);
        self.index_at(AVAILABLE).store(self.posted, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The next buffer that the device has used, with the bytes that it wrote.
    fn next(&mut self) -> Option<(u16, u32)> {
        if self.index_at(USED).load(Ordering::Acquire) == self.used {
            return None;
        }
        let entry = unsafe { self.memory.add(USED + 4 + 8 * (self.used % SIZE) as usize) as *const u32 };
        self.used = self.used.wrapping_add(1);
        unsafe { Some((entry.read_volatile() as u16, entry.add(1).read_volatile())) }
    }
}

fn front_end(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut peer = Frontend::connect(path, 2)?;
    peer.set_owner()?;
    let offered = peer.get_features()?;
    let wanted = offered & (VERSION_1 | PROTOCOL_FEATURES | IN_ORDER);
    let protocol = peer.get_protocol_features()?;
    peer.set_protocol_features(protocol & (VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK))?;
    println!("offered {offered:#x} {:#x}", protocol.bits());
    peer.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    peer.set_features(wanted)?;
    let bytes = 2 * RING;
    let (file, memory) = unsafe {
        let file = libc::memfd_create(c"rings".as_ptr(), libc::MFD_CLOEXEC);
        assert!(file >= 0 && libc::ftruncate(file, bytes as i64) == 0);
        let memory = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, 0);
        assert!(memory != libc::MAP_FAILED);
        (file, memory as *mut u8)
    };
    let user = memory as u64;
    peer.set_mem_table(&[VhostUserMemoryRegionInfo {
        guest_phys_addr: user,
        memory_size: bytes as u64,
        userspace_addr: user,
        mmap_offset: 0,
        mmap_handle: file,
    }])?;
    let mut rings: Vec<Ring> = (0..2)
        .map(|index| Ring { memory: unsafe { memory.add(index * RING) }, address: user + (index * RING) as u64, posted: 0, used: 0 })
        .collect();
    let kicks = [EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?];
    let calls = [EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?];
    for descriptor in 0..SIZE {
        rings[RX].post(descriptor, ROOM as u32, true);
    }
    for index in [RX, TX] {
        let base = rings[index].address;
        peer.set_vring_num(index, SIZE)?;
        peer.set_vring_base(index, 0)?;
        peer.set_vring_addr(index, &VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: base + DESCRIPTORS as u64,
            used_ring_addr: base + USED as u64,
            avail_ring_addr: base + AVAILABLE as u64,
            log_addr: None,
        })?;
        peer.set_vring_call(index, &calls[index])?;
        peer.set_vring_kick(index, &kicks[index])?;
        peer.set_vring_enable(index, true)?;
    }
    println!("started");
    let mut free: Vec<u16> = (0..SIZE).collect();
    loop {
        let mut events = [0, calls[RX].as_raw_fd()].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        unsafe { libc::poll(events.as_mut_ptr(), 2, -1) };
        if events[0].revents != 0 {
            break;
        }
        let _ = calls[RX].read();
        while let Some((descriptor, length)) = rings[RX].next() {
            while let Some((sent, _)) = rings[TX].next() {
                free.push(sent);
            }
            if let Some(buffer) = free.pop() {
                unsafe { rings[RX].buffer(descriptor).copy_to(rings[TX].buffer(buffer), length as usize) };
                rings[TX].post(buffer, length, false);
            }
            rings[RX].post(descriptor, ROOM as u32, true);
        }
        for kick in &kicks {
            kick.write(1)?;
        }
    }
    for index in [RX, TX] {
        peer.set_vring_enable(index, false)?;
        println!("base {index} {}", peer.get_vring_base(index)?);
    }
    match peer.reset_owner() {
        Ok(()) => println!("reset"),
        Err(error) => println!("reset refused: {error}"),
    }
    match peer.get_max_mem_slots() {
        Ok(slots) => println!("slots {slots}"),
        Err(error) => println!("slots refused: {error}"),
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments[1].as_str() {
        "back-end" => back_end(&arguments[2]),
        _ => front_end(&arguments[2]),
    }
}
