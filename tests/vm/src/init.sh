#!/bin/busybox sh
# First program of the guest: mounts its root, read-only from outside with a layer in memory above it, and goes there.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
    insmod "$module" || echo "dcqcn-vm: $module does not load"
done

p9() {
    mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$1" "$2" "$3" || echo "dcqcn-vm: no share $2"
}
p9 ro,cache=loose tree /lower
mount -t tmpfs -o size=50% upper /upper
mkdir /upper/up /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/up,workdir=/upper/work root /root
mkdir -p /root/share /root/usr/lib/modules
p9 rw,cache=none share /root/share
p9 ro,cache=loose modules /root/usr/lib/modules
for dir in proc sys dev; do
    mount -o move /$dir /root/$dir
done
mount -t tmpfs run /root/run
mount -t tmpfs tmp /root/tmp
echo "dcqcn-vm: BOOTED"
exec switch_root /root /bin/sh /share/start
