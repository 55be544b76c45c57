#!/bin/sh
# Test nodes on this machine. Each node is a kubelet and a containerd in their own network and mount namespaces. This needs root.
#
#   node.sh net                   makes the bridge to which nodes and API server are connected
#   node.sh host STATE N          holds the namespaces of node tN (N = 2..250) until it is killed
#   node.sh runtime STATE N       runs its containerd until it is killed; the containers continue
#   node.sh images STATE N TAR..  loads image archives into its containerd
#   node.sh kubelet STATE N ARGS  runs its kubelet until it is killed
#   node.sh proxy STATE N         runs its kube-proxy until it is killed
#   node.sh cut N | node.sh join N    disconnects the node from the network, or connects it again
#   node.sh down STATE            removes everything that these commands have made, also in an earlier run
#
# STATE is the folder that was given to `testcluster up`. The variable TESTCLUSTER is the path of that program.
# The variable FAMILY is v4 (the default) or v6. Nodes and pods have only addresses of this family:
#
#            bridge         node tN        its pods
#   v4       10.99.0.1/24   10.99.0.N      10.88.N.0/24
#   v6       fd00:99::1/64  fd00:99::N     fd00:88:N::/64
#
# Needs Debian's containerd, runc, containernetworking-plugins, iproute2, iptables.
set -eu

bridge=varunatest0
case ${FAMILY:-v4} in
v4)
    gateway=10.99.0.1 length=24 all_pods=10.88.0.0/16 everywhere=0.0.0.0/0
    forwarding=net.ipv4.ip_forward
    options=
    node_ip() { echo "10.99.0.$1"; }
    pods_of() { echo "10.88.$1.0/24"; }
    ;;
v6)
    gateway=fd00:99::1 length=64 all_pods=fd00:88::/32 everywhere=::/0
    forwarding=net.ipv6.conf.all.forwarding
    # The bridge has no other users, and no process can listen on an address while duplicate address detection is running.
    options=nodad
    node_ip() { echo "fd00:99::$1"; }
    pods_of() { echo "fd00:88:$1::/64"; }
    ;;
*)
    echo "node.sh: FAMILY is v4 or v6, not $FAMILY" >&2
    exit 2
    ;;
esac

within() { # within N COMMAND: runs it in the node's namespaces, which its host process holds
    pid=$(cat "$state/host$1/host.pid")
    shift
    # `ip netns exec` would mount a new /sys without the cgroup hierarchies.
    exec nsenter --target "$pid" --net --mount "$@"
}

net() {
    ip link show $bridge >/dev/null 2>&1 && return
    ip link add $bridge type bridge
    # shellcheck disable=SC2086 # empty, or one word
    ip addr add $gateway/$length dev $bridge $options
    ip link set $bridge up
    sysctl -qw $forwarding=1
}

host() {
    n=$1 dir=$state/host$1 address=$(node_ip "$1") range=$(pods_of "$1")
    ip netns add "vt$n"
    ip link add "vt$n" type veth peer name eth0 netns "vt$n"
    ip link set "vt$n" master $bridge up
    # shellcheck disable=SC2086 # empty, or one word
    ip -n "vt$n" addr add "$address/$length" dev eth0 $options
    ip -n "vt$n" link set eth0 up
    ip -n "vt$n" link set lo up
    ip -n "vt$n" route add default via $gateway
    ip route replace "$range" via "$address"
    mkdir -p "$dir/cni" "$dir/kubelet" /var/lib/kubelet
    cat >"$dir/cni/10.conflist" <<C
{"cniVersion":"1.0.0","name":"t","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"hairpinMode":true,"ipam":{"type":"host-local",
  "ranges":[[{"subnet":"$range"}]],"routes":[{"dst":"$everywhere"}],"dataDir":"$dir/ipam"}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
C
    cat >"$dir/containerd.toml" <<C
version = 2
root = "$dir/root"
state = "$dir/state"
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
C
    cat >"$dir/run.sh" <<C
set -e
mount --make-rprivate /
mount --bind "$dir/kubelet" /var/lib/kubelet
mount --make-rshared /
sysctl -qw $forwarding=1
echo \$\$ >"$dir/host.pid.partial"
mv "$dir/host.pid.partial" "$dir/host.pid"
# Waits for ever. Its command line contains the node's folder, by which \`down\` finds it.
exec tail -f "$dir/host.pid"
C
    # This is a separate process, so that the node's mounts remain if a test kills containerd.
    exec nsenter --net="/run/netns/vt$n" unshare --mount --propagation unchanged sh "$dir/run.sh"
}

runtime() {
    dir=$state/host$1
    within "$1" containerd -c "$dir/containerd.toml" >>"$dir/containerd.log" 2>&1
}

images() {
    socket=$state/host$1/containerd.sock
    shift
    tries=0
    until ctr -a "$socket" version >/dev/null 2>&1; do
        tries=$((tries + 1))
        # The log is deleted with the cluster.
        [ $tries -lt 1200 ] || { echo "containerd does not start" >&2; tail -n 8 "${socket%/*}/containerd.log" >&2; exit 1; }
        sleep 0.1
    done
    for tar in "$@"; do ctr -a "$socket" -n k8s.io image import "$tar" >/dev/null; done
}

proxy() {
    n=$1
    cat >"$state/host$n/proxy.yaml" <<C
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: "$(node_ip "$n")"
clientConnection: {kubeconfig: $state/admin.kubeconfig}
clusterCIDR: "$all_pods"
mode: iptables
hostnameOverride: t$n
conntrack: {maxPerCore: 0, min: 0}
iptables: {minSyncPeriod: 100ms}
C
    within "$n" "$TESTCLUSTER" kube-proxy --config "$state/host$n/proxy.yaml"
}

# Processes whose command line contains this text, such as the state folder.
ours() {
    for entry in /proc/[0-9]*; do
        pid=${entry#/proc/}
        [ "$pid" != $$ ] || continue
        { tr '\0' ' ' <"$entry/cmdline"; } 2>/dev/null | grep -qF "$1" && echo "$pid"
    done
    true
}

down() {
    # Kubelets first, because they restart containers; then the processes that started containers, then the containers.
    for pattern in "node --dir $state" "kube-proxy --config $state" "$state/host"; do
        for pid in $(ours "$pattern"); do kill -9 "$pid" 2>/dev/null || true; done
    done
    for file in /sys/fs/cgroup/*/testcluster-t*/ /sys/fs/cgroup/testcluster-t*/; do
        [ -d "$file" ] || continue
        find "$file" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u | while read -r pid; do kill -9 "$pid" 2>/dev/null || true; done
    done
    sleep 0.5
    find /sys/fs/cgroup -depth -type d -path '*/testcluster-t*' -exec rmdir {} \; 2>/dev/null || true
    for name in $(ip netns list | sed -n 's/^\(vt[0-9]*\).*/\1/p'); do
        umount "/run/netns/$name" 2>/dev/null || true
        ip netns del "$name" 2>/dev/null || true
        ip link del "$name" 2>/dev/null || true
    done
    ip link del $bridge 2>/dev/null || true
    # Mounts of the nodes were in namespaces that have ended with their processes. But snapshots may be mounted in this namespace, too.
    grep -F " $state/host" /proc/mounts | cut -d' ' -f2 | sort -r | while read -r at; do umount -l "$at" 2>/dev/null || true; done
}

command=$1
shift
case $command in
net) net ;;
cut) ip link set "vt$1" down ;;
join) ip link set "vt$1" up ;;
*)
    state=$1
    shift
    case $command in
    host) host "$1" ;;
    runtime) runtime "$1" ;;
    images) images "$@" ;;
    kubelet)
        n=$1
        shift
        within "$n" "$TESTCLUSTER" node --dir "$state" --name "t$n" --ip "$(node_ip "$n")" --cri "unix://$state/host$n/containerd.sock" --dns "$gateway" "$@"
        ;;
    proxy) proxy "$1" ;;
    down) down ;;
    *)
        echo "node.sh: no such command: $command" >&2
        exit 2
        ;;
    esac
    ;;
esac
