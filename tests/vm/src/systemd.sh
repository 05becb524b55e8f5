# First program of a guest that boots with Debian's systemd: installs what an image would have, and starts systemd.
# As in an image, the package is installed while nothing runs; at boot it must attach an interface that udev renames.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive
cp /share/vm-guest /usr/local/bin
echo guest >/etc/hostname
echo 5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e >/etc/machine-id
mkdir -p /etc/systemd/network /etc/systemd/system
cat >/etc/systemd/network/10-roce.link <<END
[Match]
MACAddress=02:00:00:00:00:01
[Link]
Name=roce0
END
cat >/etc/systemd/system/links.service <<END
[Unit]
Description=Interfaces, as their drivers would make them
DefaultDependencies=no
Wants=network-pre.target
Before=network-pre.target
After=systemd-udevd.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/modprobe veth
ExecStart=/sbin/ip link add first0 address 02:00:00:00:00:01 type veth peer name far0
ExecStart=/sbin/ip link set far0 up
[Install]
WantedBy=multi-user.target
END
cat >/etc/systemd/system/scenario.service <<END
[Unit]
Description=The scenario
After=dcqcn.service links.service
[Service]
Type=idle
WorkingDirectory=/share
Environment=PATH=$PATH HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive
ExecStart=/bin/sh -c 'vm-guest run SCENARIO result.json; sync; echo b >/proc/sysrq-trigger'
StandardOutput=tty
StandardError=inherit
TTYPath=/dev/ttyS0
[Install]
WantedBy=multi-user.target
END
dpkg --install /share/dcqcn-before.deb
cat >/etc/dcqcn/dcqcn.toml <<END
[[interface]]
name = "roce*"
flows = 1024
END
systemctl enable dcqcn.service links.service scenario.service
systemctl mask serial-getty@ttyS0.service getty.target console-getty.service openvswitch-switch.service
systemctl set-default multi-user.target
exec /lib/systemd/systemd
