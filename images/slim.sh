#!/bin/sh
# Run by mmdebstrap on the root of a base image, after its packages were unpacked: what their own scripts would have made and a program needs,
# the list of packages for scanners, and nothing that only these scripts and people read.
set -eu
root=$1

# What only the scripts of packages need.
unused="openssl libssl3 libssl3t64 debconf mawk"

# Where scanners look for the packages of an image without dpkg.
mkdir -p "$root/var/lib/dpkg/status.d"
for package in "$root"/var/cache/apt/archives/*.deb; do
    name=$(dpkg-deb -f "$package" Package)
    case " $unused " in
    *" $name "*) dpkg-deb --fsys-tarfile "$package" | tar -t | grep -v '/$' | (cd "$root" && xargs rm -f) ;;
    *) dpkg-deb -f "$package" >"$root/var/lib/dpkg/status.d/$name" ;;
    esac
done

# Without these no bucket can be reached over HTTPS.
mkdir -p "$root/etc/ssl/certs"
cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"

printf 'root:x:0:0::/:\nvaruna:x:65532:65532::/:\n' >"$root/etc/passwd"
printf 'root:x:0:\nvaruna:x:65532:\n' >"$root/etc/group"

# The licences stay.
find "$root/usr/share/doc" -type f ! -name copyright -delete
rm -rf "$root/usr/share/man" "$root/usr/share/locale" "$root/usr/share/info" "$root/usr/share/ca-certificates" \
    "$root/usr/share/perl5" "$root/usr/lib/x86_64-linux-gnu/gconv" "$root/var/lib/apt" "$root/var/cache/apt"
find "$root/usr" "$root/var" "$root/etc" -depth -type d -empty -delete
