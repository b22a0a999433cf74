//! Frames over a Unix socket, and the descriptors that ride on them.
use crate::descriptors::{self, DESCRIPTORS_MAX};
use crate::wire::{self, LENGTH_BYTES, WireError};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// First size of a buffer. Most messages fit.
const BUFFER_BYTES: usize = 16 << 10;
/// A buffer that grew for a large message is kept up to this size.
pub(crate) const KEPT_BYTES_MAX: usize = 256 << 10;

/// Why a conversation has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The other side closed it, or died.
    #[error("the other side has gone")]
    Gone,
    /// Nothing came or was taken within the socket's timeout.
    #[error("the other side does not answer")]
    Silent,
    /// What came is no message.
    #[error("{0}")]
    Nonsense(WireError),
    /// The kernel refused.
    #[error("the socket failed: {0}")]
    Socket(Errno),
}

impl From<Errno> for Broken {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Gone,
            Errno::AGAIN => Self::Silent,
            errno => Self::Socket(errno),
        }
    }
}

impl From<WireError> for Broken {
    fn from(error: WireError) -> Self {
        Self::Nonsense(error)
    }
}

/// Bytes that have come. Frames are taken from them.
#[derive(Debug)]
pub(crate) struct FrameReader {
    buffer: Vec<u8>,
    /// Bytes that have come and were not taken are in `start..end`.
    start: usize,
    end: usize,
    /// Descriptors that have come and were not taken.
    descriptors: Vec<OwnedFd>,
    takes_descriptors: bool,
}

impl FrameReader {
    /// `takes_descriptors`: otherwise the kernel closes descriptors that are sent.
    pub(crate) fn new(takes_descriptors: bool) -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            descriptors: Vec::new(),
            takes_descriptors,
        }
    }

    /// Waits for the next frame and returns its body, with the descriptors that have come.
    pub(crate) fn next_with_descriptors(&mut self, socket: BorrowedFd<'_>) -> Result<(&[u8], Vec<OwnedFd>), Broken> {
        let body = self.wait(socket)?;
        Ok((&self.buffer[body], std::mem::take(&mut self.descriptors)))
    }

    /// Waits for the next frame and returns its body.
    pub(crate) fn next(&mut self, socket: BorrowedFd<'_>) -> Result<&[u8], Broken> {
        let body = self.wait(socket)?;
        Ok(&self.buffer[body])
    }

    /// Waits for the next frame however long it takes, and returns its body. The socket's timeout only begins the wait
    /// again. The wait ends with the connection.
    pub(crate) fn next_however_long(&mut self, socket: BorrowedFd<'_>) -> Result<&[u8], Broken> {
        let body = loop {
            match self.wait(socket) {
                Err(Broken::Silent) => {}
                body => break body?,
            }
        };
        Ok(&self.buffer[body])
    }

    /// Where in the buffer the next body lies.
    fn wait(&mut self, socket: BorrowedFd<'_>) -> Result<Range<usize>, Broken> {
        let body = loop {
            let come = &self.buffer[self.start..self.end];
            let wanted = match come.first_chunk::<LENGTH_BYTES>() {
                Some(length) => LENGTH_BYTES + wire::body_len(*length)?,
                None => LENGTH_BYTES + 1,
            };
            if wanted <= come.len() {
                break self.start + LENGTH_BYTES..self.start + wanted;
            }
            self.make_room(wanted)?;
            self.receive(socket)?;
        };
        self.start = body.end;
        Ok(body)
    }

    /// Makes room for a frame of `len` bytes that begins at `start`.
    fn make_room(&mut self, len: usize) -> Result<(), Broken> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if KEPT_BYTES_MAX < self.buffer.len() && len <= KEPT_BYTES_MAX {
                self.buffer.truncate(KEPT_BYTES_MAX);
                self.buffer.shrink_to_fit();
            }
        }
        if self.buffer.len() - self.start < len {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if let Some(more) = len.checked_sub(self.buffer.len()) {
            // Where there is no memory for one client's message, the others are still served.
            self.buffer.try_reserve_exact(more).map_err(|_| Errno::NOMEM)?;
            self.buffer.resize(len, 0);
        }
        Ok(())
    }

    fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<(), Broken> {
        let room = &mut self.buffer[self.end..];
        let come = if self.takes_descriptors {
            descriptors::received(socket, room, &mut self.descriptors)?
        } else {
            retry_on_intr(|| rustix::net::recv(socket, &mut *room, RecvFlags::empty()))?.0
        };
        if come == 0 {
            return Err(Broken::Gone);
        }
        self.end += come;
        Ok(())
    }
}

/// Sends all of `bytes`.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Broken> {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += retry_on_intr(|| rustix::net::send(socket, &bytes[sent..], SendFlags::NOSIGNAL))?;
    }
    Ok(())
}

/// Sends all of `bytes` without waiting. False: nothing was sent, because the other side takes nothing now.
pub(crate) fn send_if_room(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<bool, Broken> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match retry_on_intr(|| rustix::net::send(socket, bytes, flags)) {
        Ok(sent) => send(socket, &bytes[sent..]).map(|()| true),
        Err(Errno::AGAIN) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends all of `bytes`, and the descriptors (at most `DESCRIPTORS_MAX`) with the first of them.
pub(crate) fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Broken> {
    if descriptors.is_empty() {
        return send(socket, bytes);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(
        control.push(SendAncillaryMessage::ScmRights(descriptors)),
        "{} descriptors go in one message",
        descriptors.len()
    );
    let sent = retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?;
    send(socket, &bytes[sent..])
}

/// Ends both directions. Threads that wait on the socket, here or there, wake up.
pub(crate) fn shut_down(socket: impl AsFd) {
    // It fails only where the socket has ended already.
    let _ended = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}
