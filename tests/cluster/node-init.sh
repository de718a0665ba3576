#!/bin/bash
# The first process of a node, in pid, mount, network, uts and ipc namespaces of its own: when it dies, all of the node
# dies, pods included. It runs again after a crash, on the same $STATE. Its environment: see node.py.
set -eu

# Volumes need shared mounts. What is mounted here is the node's own, where the programs leave us no choice of folder,
# and gone after a crash, as it is on a machine that boots.
mount --make-rshared /
for folder in /run/netns /run/containerd /var/lib/cni /var/log/containers "$STATE/containerd-run"; do
    mount -t tmpfs tmpfs "$folder"
done
mount --bind "$STATE/kubelet" /var/lib/kubelet
hostname "$NODE"

until ip link show eth0 > /dev/null 2>&1; do sleep 0.02; done
ip link set lo up
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
ip route add default via "$CONTROL_PLANE"
for route in $ROUTES; do  # pods=node
    ip route add "${route%=*}" via "${route#*=}"
done
echo 1 > /proc/sys/net/ipv4/ip_forward
# The host sends what is for a Service here before kube-proxy knows the Service: do not tell it of a better way for good.
for device in all eth0; do
    echo 0 > "/proc/sys/net/ipv4/conf/$device/send_redirects"
done
echo 1 > /proc/sys/net/ipv4/tcp_orphan_retries  # see network.py

keep() {  # LOG COMMAND...: start again whatever exits
    local log=$1
    shift
    while :; do
        "$@" || echo "exit status $?: starting again"
        sleep 0.5
    done >> "$log" 2>&1
}

socket=$STATE/containerd.sock
rm -f "$socket" "$socket.ttrpc"
keep "$LOGS/$NODE-containerd.log" containerd --config "$STATE/containerd.toml" &
keep "$LOGS/$NODE-kube-proxy.log" kube-proxy --config "$STATE/kube-proxy.yaml" &
until ctr --address "$socket" version > /dev/null 2>&1; do sleep 0.05; done  # the kubelet exits where nobody answers
for image in "$IMAGES"/*.tar; do
    ctr --address "$socket" --namespace k8s.io images import "$image"
done
keep "$LOGS/$NODE-kubelet.log" kubelet --config "$STATE/kubelet.yaml" --kubeconfig "$KUBECONFIG" \
    --hostname-override "$NODE" --node-ip "$ADDRESS" --root-dir /var/lib/kubelet &
while :; do wait -n || :; done
