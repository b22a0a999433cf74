#!/bin/busybox sh
# The first process of the guest: puts the host's file system under a writable overlay, brings up soft-RoCE, runs the tests, powers off.
# What they print goes to the second serial port; their exit status goes to the shared folder, and only if there is an RDMA device.
/bin/busybox mkdir -p /sbin /usr/bin /usr/sbin
/bin/busybox --install -s
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
exec >/dev/ttyS1 2>&1 </dev/null
stty -F /dev/ttyS1 -opost

fail() {
    echo "test-rdma: in the guest: $1"
    poweroff -f
}

while read -r module; do
    insmod "/modules/$module" || fail "the kernel did not take $module"
done </modules/order

root=/overlay/root
share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2" || fail "no share $1"; }
share host /host ro,cache=loose
share packages /packages ro,cache=loose
mount -t tmpfs -o size=90% overlay /overlay
mkdir -p /overlay/changes /overlay/work $root
# The host comes first: where its /lib is a link, a package's folder of that name must not hide it.
mount -t overlay -o lowerdir=/host:/packages,upperdir=/overlay/changes,workdir=/overlay/work overlay $root || fail "no overlay"
mkdir -p $root/shared /dev/shm /dev/pts
mount -t proc proc $root/proc
mount -t sysfs sysfs $root/sys
mount --bind /dev $root/dev
mount -t tmpfs tmpfs $root/dev/shm
mount -t devpts devpts $root/dev/pts
mount -t tmpfs tmpfs $root/run
ln -sf /proc/self/fd /dev/fd
share shared $root/shared cache=none

# A device that only this guest has. With 4,500 bytes a packet carries 4,096, the most that RDMA has.
ip link set lo up
[ -e /sys/class/net/dummy0 ] || chroot $root ip link add dummy0 type dummy || fail "no network device dummy0"
ip link set dummy0 mtu 4500
ip addr add 10.77.0.1/24 dev dummy0
ip link set dummy0 up
chroot $root rdma link add rxe0 type rxe netdev dummy0 || fail "no soft-RoCE device (rdma_rxe)"

# Connections need the IPv4 address in the device's table, where it appears a moment after the device.
tries=0
until grep -q 0000:ffff:0a4d:0001 /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || fail "the device has no RoCE address for 10.77.0.1"
    sleep 0.05
done

ulimit -n 65536
echo "guest: RDMA device rxe0 after $(cut -d' ' -f1 /proc/uptime) s"
TENSORLEASE_RDMA_DEVICE=rxe0 TENSORLEASE_RDMA_ADDRESS=10.77.0.1 chroot $root /bin/bash /shared/tests.sh
echo $? >$root/shared/status
dmesg >$root/shared/dmesg
sync
poweroff -f
