#!/bin/sh
# Installs a release file, runs its commands and removes it: install-test.sh FILE VERSION ROOT [EMULATOR OWN].
# ROOT is a fresh Debian with adduser, which is copied. With an EMULATOR, for a file of another architecture, it is only unpacked, run, and
# compared with OWN, the file for this machine. Needs root.
set -eu
file=$1 version=$2 root=$3 emulator=${4:-} own=${5:-}
name=$(basename "$file")
work=$(mktemp -d "$root.XXXXXX")
trap 'rm -rf "$work"' EXIT
# A signal alone does not run the trap above in every shell.
trap 'exit 1' HUP INT TERM

fail() {
    echo "$name: $*" >&2
    exit 1
}

# Runs a command for the root $1 in new namespaces, so that scripts of packages find no attachment of this machine.
isolated() {
    unshare --mount --net --pid --fork sh -c 'mount -t proc proc "$0/proc"; exec "$@"' "$@"
}

# Makes the copy of the root that this file is installed in.
copy_root() {
    cp -a "$root" "$work/root"
    root=$work/root
}

# Runs a command of it.
inside() {
    isolated "$root" chroot "$root" "$@"
}

# Runs a command of the unpacked file $1, where it is $2.
run_in() {
    tree=$1 program=$2
    shift 2
    if [ -n "$emulator" ]; then
        "$emulator" "$tree$program" "$@"
    else
        mkdir -p "$tree/proc"
        isolated "$tree" chroot "$tree" "$program" "$@"
    fi
}

check_version() {
    printed=$(run_in "$1" "$2" --version) || fail "$2 does not start"
    [ "$printed" = "$(basename "$2") $version" ] || fail "$2 prints $printed"
    case $2 in
        */dcqcn) run_in "$1" "$2" doctor --help >"$work/help" || fail "$2 doctor --help" ;;
    esac
}

# All paths of the root, without those that package managers and adduser keep.
paths() {
    (cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./var/lib/dpkg -o -path ./var/lib/rpm-test \
        -o -path ./var/log/dpkg.log -o -path ./var/cache/ldconfig -o -path './etc/*-' -o -path ./etc/.pwd.lock -o -path ./run/adduser \) -prune \
        -o "$@" -print | sort)
}

check_left() {
    diff "$work/before" "$work/after" >"$work/left" || fail "files differ after removal: $(cat "$work/left")"
}

# Whether two listings of packages are equal.
check_equal() {
    diff "$1" "$2" >"$work/differences" || fail "its files are not those of this machine's: $(cat "$work/differences")"
}

case $name in
    *.deb)
        package=${name%%_*}
        contents() {
            dpkg-deb --contents "$1" | awk '{ print $1, $2, $6 }'
        }
        architecture=${name##*_}
        [ "$(dpkg-deb --field "$file" Architecture)" = "${architecture%.deb}" ] || fail "is for another architecture"
        if [ -n "$emulator" ]; then
            dpkg-deb --extract "$file" "$work/tree"
            check_version "$work/tree" "/usr/bin/$package"
            contents "$file" >"$work/own"
            contents "$own" >"$work/other"
            check_equal "$work/other" "$work/own"
            exit
        fi
        copy_root
        paths -true >"$work/before"
        cp "$file" "$root/package.deb"
        inside dpkg --install /package.deb
        rm "$root/package.deb"
        check_version "$root" "/usr/bin/$package"
        changed=$(inside dpkg --verify "$package")
        [ -z "$changed" ] || fail "dpkg --verify: $changed"
        inside dpkg --remove "$package"
        inside dpkg --purge "$package"
        paths -true >"$work/after"
        check_left
        ;;
    *.rpm)
        package=${name%-"$version"*}
        requires=$(rpm --query --package --requires "$file" | grep -Ev '^(/bin/sh|/usr/sbin/useradd|rpmlib\(|config\()' || true)
        [ -z "$requires" ] || fail "requires $requires"
        if [ -n "$emulator" ]; then
            mkdir "$work/tree"
            rpm2cpio "$file" | (cd "$work/tree" && cpio --extract --make-directories --quiet)
            check_version "$work/tree" "/usr/bin/$package"
            rpm --query --package --list "$file" >"$work/own"
            rpm --query --package --list "$own" >"$work/other"
            check_equal "$work/other" "$work/own"
            exit
        fi
        installed() {
            isolated "$root" rpm --root "$root" --dbpath /var/lib/rpm-test --force-debian "$@"
        }
        copy_root
        # Debian lacks the packages that own the directories.
        paths ! -type d >"$work/before"
        installed --nodeps --install "$file"
        check_version "$root" "/usr/bin/$package"
        installed --verify --nodeps "$package" || fail "rpm --verify"
        installed --nodeps --erase "$package"
        paths ! -type d >"$work/after"
        check_left
        ;;
    *.tar.gz)
        tar -xzf "$file" -C "$work"
        tree=$work/${name%.tar.gz}
        # Nothing but the static commands is in the root.
        for program in "$tree"/bin/*; do
            check_version "$tree" "/bin/$(basename "$program")"
        done
        for path in share/man/man1/dcqcn.1.gz systemd/dcqcn.service dcqcn.toml LICENSE-MIT LICENSE-GPL2; do
            [ -s "$tree/$path" ] || fail "lacks $path"
        done
        ;;
    *.oci.tar)
        mkdir "$work/oci" "$work/tree"
        tar -xf "$file" -C "$work/oci"
        python3 - "$work/oci" >"$work/layers" <<'PY'
import json, pathlib, sys

blobs = pathlib.Path(sys.argv[1])
load = lambda path: json.loads((blobs / path).read_text())
blob = lambda digest: "blobs/" + digest.replace(":", "/")
manifest = load(blob(load("index.json")["manifests"][0]["digest"]))
config = load(blob(manifest["config"]["digest"]))
print(config["architecture"], *config["config"]["Entrypoint"])
for layer in manifest["layers"]:
    print(blob(layer["digest"]))
PY
        architecture=$(echo "$name" | sed 's/.*-\([^-]*\)\.oci\.tar/\1/')
        [ "$(head -n 1 "$work/layers")" = "$architecture /usr/bin/dcqcn" ] || fail "is for $(head -n 1 "$work/layers")"
        tail -n +2 "$work/layers" | while read -r layer; do
            tar -xf "$work/oci/$layer" -C "$work/tree"
        done
        for program in /usr/bin/dcqcn /usr/bin/dcqcn-fleet; do
            check_version "$work/tree" "$program"
        done
        ;;
    *) fail "is of no known format" ;;
esac
