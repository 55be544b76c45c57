// testcluster starts a real Kubernetes control plane for tests: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, and on request kubelets against
// containerd sockets. It needs no container registry, no kubeadm and no systemd.
//
//	testcluster up --dir D [--bind 127.0.0.1] [--port N] [--san ip,ip] [--fast-nodes] [--while-stdin]
//	    runs until SIGTERM (with --while-stdin: or until its standard input ends); when D/ready exists, D/admin.kubeconfig works
//	testcluster node --dir D --name n2 --ip 10.99.0.2 --cri unix:///.../containerd.sock
//	    writes the node's certificate and config, then becomes its kubelet
//	testcluster kubectl ...      the matching kubectl
//	testcluster <component> ...  one component, with its own flags
//
// One binary, but one process per component. The upstream commands each install the
// process-wide signal handler, which may be done once only, and share the global
// feature gates and metrics registries, so two of them in one process panic unless
// patched (k3s and MicroShift carry such patches). Separate processes also let a test
// kill or pause one of them.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// The kernel sends Pdeathsig when the thread that forked ends, so fork only from the main thread.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testcluster up|node|kubectl|<component> ...")
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "up":
		err = up(os.Args[2:])
	case "node":
		err = node(os.Args[2:])
	default:
		os.Exit(runComponent(os.Args[1], os.Args[2:]))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcluster:", err)
		os.Exit(1)
	}
}

// ---- certificates ----

type ca struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func keyPEM(k *ecdsa.PrivateKey) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(k))})
}

// loadCA reads dir/ca.crt and dir/ca.key, and creates them if they do not exist.
func loadCA(dir string) ca {
	cf, kf := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	if c, err := os.ReadFile(cf); err == nil {
		b, _ := pem.Decode(c)
		kb, _ := pem.Decode(must(os.ReadFile(kf)))
		return ca{must(x509.ParseCertificate(b.Bytes)), must(x509.ParseECPrivateKey(kb.Bytes)), c}
	}
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "testcluster-ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der := must(x509.CreateCertificate(rand.Reader, t, t, k.Public(), k))
	p := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(cf, p)
	write(kf, keyPEM(k))
	return ca{must(x509.ParseCertificate(der)), k, p}
}

// issue signs a certificate. With names or addresses it is for a server, otherwise for a client.
func (c ca) issue(cn string, org []string, san ...string) (crt, key []byte) {
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	t := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cn, Organization: org},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, s := range san {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(s); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if s != "" {
			t.DNSNames = append(t.DNSNames, s)
		}
	}
	der := must(x509.CreateCertificate(rand.Reader, t, c.cert, k.Public(), c.key))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM(k)
}

func write(name string, b []byte) string {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		panic(err)
	}
	return name
}

func (c ca) kubeconfig(file, server, cn string, org ...string) string {
	crt, key := c.issue(cn, org)
	e := base64.StdEncoding.EncodeToString
	return write(file, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: t, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: t, context: {cluster: t, user: u}}]
current-context: t
`, server, e(c.pem), e(crt), e(key)))
}

// ---- the control plane ----

// Timeout for the start of a component, which takes a few seconds, or more on a machine that is
// busy with other tests.
const startLimit = 100 * time.Second

// freePort returns a port that no process listens on. It is not from the range that the kernel
// uses for automatic ports (on Linux from 32768 on): other tests use many of these, and one could
// be taken before its component listens on it.
func freePort() string {
	for {
		n := must(rand.Int(rand.Reader, big.NewInt(20000)))
		port := fmt.Sprint(10000 + n.Int64())
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			l.Close()
			return port
		}
	}
}

type child struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// start runs this binary as one component, with its output in dir/name.log. The child dies
// with this process: the kernel signals it when the thread that started it ends.
func start(dir, name string, args ...string) (*child, error) {
	f, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c := exec.Command("/proc/self/exe", append([]string{name}, args...)...)
	c.Stdout, c.Stderr = f, f
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return nil, err
	}
	ch := &child{name: name, cmd: c, done: make(chan struct{})}
	go func() { ch.err = c.Wait(); close(ch.done) }()
	_ = os.WriteFile(filepath.Join(dir, name+".pid"), fmt.Append(nil, c.Process.Pid), 0o644)
	return ch, nil
}

func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(5 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

// await polls url until it answers 200, the child has gone, or the time is up.
func await(c *child, client *http.Client, url string, limit time.Duration) error {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		select {
		case <-c.done:
			return fmt.Errorf("%s ended: %v (see %s.log)", c.name, c.err, c.name)
		case <-time.After(50 * time.Millisecond):
		}
		if r, err := client.Get(url); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
			if r.StatusCode == 200 {
				return nil
			}
		}
	}
	return fmt.Errorf("%s: not ready after %v", c.name, limit)
}

func up(args []string) (err error) {
	fs := flag.NewFlagSet("up", flag.ExitOnError)
	dir := fs.String("dir", "", "state directory (made; keep it off a slow disk)")
	bind := fs.String("bind", "127.0.0.1", "address the API server listens on")
	port := fs.String("port", "", "its port (empty: a free one)")
	san := fs.String("san", "", "more names or addresses for its certificate, with commas")
	fast := fs.Bool("fast-nodes", false, "notice a lost node in about 4 s instead of 50 s")
	whileStdin := fs.Bool("while-stdin", false, "end when standard input ends: with the process that holds its other end")
	apiArgs := fs.String("api-args", "", "more kube-apiserver flags, with spaces")
	_ = fs.Parse(args)
	if *dir == "" {
		return errors.New("up: --dir is needed")
	}
	if *dir, err = filepath.Abs(*dir); err != nil {
		return err
	}
	began := time.Now()
	p := func(n string) string { return filepath.Join(*dir, n) }
	if err = os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	_ = os.Remove(p("ready"))
	if *port == "" {
		*port = freePort()
	}
	server := "https://" + net.JoinHostPort(*bind, *port)
	root := loadCA(*dir)
	names := append([]string{"localhost", "127.0.0.1", *bind, "10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}, strings.Split(*san, ",")...)
	crt, key := root.issue("kube-apiserver", nil, names...)
	write(p("apiserver.crt"), crt)
	write(p("apiserver.key"), key)
	crt, key = root.issue("kubelet-client", []string{"system:masters"})
	write(p("kubelet-client.crt"), crt)
	write(p("kubelet-client.key"), key)
	write(p("sa.key"), keyPEM(must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))))
	write(p("server"), []byte(server))
	admin := root.kubeconfig(p("admin.kubeconfig"), server, "admin", "system:masters")
	// With its own identity it has too few rights, unless every controller has a service account.
	kcmConf := root.kubeconfig(p("kcm.kubeconfig"), server, "testcluster-kcm", "system:masters")
	schedConf := root.kubeconfig(p("scheduler.kubeconfig"), server, "system:kube-scheduler")

	var all []*child
	defer func() {
		for i := len(all) - 1; i >= 0; i-- {
			all[i].stop()
		}
	}()
	run := func(name string, a ...string) (*child, error) {
		c, err := start(*dir, name, a...)
		if err == nil {
			all = append(all, c)
		}
		return c, err
	}

	etcdURL := "http://127.0.0.1:" + freePort()
	c, err := run("etcd", p("etcd"), etcdURL, "http://127.0.0.1:"+freePort())
	if err != nil {
		return err
	}
	if err = await(c, http.DefaultClient, etcdURL+"/health", startLimit); err != nil {
		return err
	}

	api := []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=" + *bind, "--secure-port=" + *port, "--cert-dir=" + *dir,
		"--tls-cert-file=" + p("apiserver.crt"), "--tls-private-key-file=" + p("apiserver.key"),
		"--client-ca-file=" + p("ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + p("sa.key"), "--service-account-key-file=" + p("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--kubelet-client-certificate=" + p("kubelet-client.crt"), "--kubelet-client-key=" + p("kubelet-client.key"),
		"--kubelet-certificate-authority=" + p("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged=true", "--profiling=false",
	}
	if ip := net.ParseIP(*bind); ip != nil && ip.IsLoopback() {
		// An Endpoints object must not contain a loopback address.
		api = append(api, "--endpoint-reconciler-type=none")
	} else {
		api = append(api, "--advertise-address="+*bind)
	}
	api = append(api, strings.Fields(*apiArgs)...)
	if c, err = run("kube-apiserver", api...); err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(root.pem)
	ac, ak := root.issue("admin", []string{"system:masters"})
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: pool, Certificates: []tls.Certificate{must(tls.X509KeyPair(ac, ak))}}}}
	if err = await(c, client, server+"/readyz", startLimit); err != nil {
		return err
	}

	common := []string{"--bind-address=127.0.0.1", "--leader-elect=false", "--cert-dir=" + *dir}
	kcmArgs := append([]string{"--kubeconfig=" + kcmConf, "--authentication-kubeconfig=" + kcmConf, "--authorization-kubeconfig=" + kcmConf,
		"--secure-port=" + freePort(), "--service-account-private-key-file=" + p("sa.key"), "--root-ca-file=" + p("ca.crt"),
		"--use-service-account-credentials=false", "--kube-api-qps=200", "--kube-api-burst=400",
		// The default is one node every 10 s, and a small zone whose nodes are mostly down evicts no pods.
		"--node-eviction-rate=10"}, common...)
	if *fast {
		kcmArgs = append(kcmArgs, "--node-monitor-period=1s", "--node-monitor-grace-period=4s", "--node-startup-grace-period=10s")
	}
	if _, err = run("kube-controller-manager", kcmArgs...); err != nil {
		return err
	}
	if _, err = run("kube-scheduler", append([]string{"--kubeconfig=" + schedConf, "--authentication-kubeconfig=" + schedConf,
		"--authorization-kubeconfig=" + schedConf, "--secure-port=" + freePort()}, common...)...); err != nil {
		return err
	}
	// Pods are refused until their namespace has its service account.
	if err = await(all[2], client, server+"/api/v1/namespaces/default/serviceaccounts/default", startLimit); err != nil {
		return err
	}
	write(p("ready"), []byte(server))
	fmt.Printf("ready in %v: export KUBECONFIG=%s\n", time.Since(began).Round(time.Millisecond), admin)

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	if *whileStdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop <- syscall.SIGTERM
		}()
	}
	gone := make(chan *child, len(all))
	for _, c := range all {
		go func() { <-c.done; gone <- c }()
	}
	for {
		select {
		case <-stop:
			return nil
		case c := <-gone:
			// A test may have killed the component on purpose, so this continues.
			fmt.Printf("%s ended: %v\n", c.name, c.err)
		}
	}
}

// ---- a node ----

// node becomes a kubelet. Run it in the node's own network and mount namespaces, the
// same mount namespace as that node's containerd, with a private /var/lib/kubelet:
// kubelets fix the device-plugin socket to that path whatever --root-dir says.
func node(args []string) error {
	fs := flag.NewFlagSet("node", flag.ExitOnError)
	dir := fs.String("dir", "", "the cluster's state directory")
	name := fs.String("name", "", "node name")
	ip := fs.String("ip", "", "node address")
	cri := fs.String("cri", "unix:///run/containerd/containerd.sock", "runtime socket")
	labels := fs.String("labels", "", "node labels, k=v with commas")
	fast := fs.Bool("fast-nodes", false, "heartbeat every second")
	dns := fs.String("dns", "", "address of the cluster's DNS server (empty: pods use the node's)")
	reserve := fs.String("reserve", "", "systemReserved as YAML flow, e.g. {cpu: 1500m, memory: 20Gi}")
	_ = fs.Parse(args)
	if *dir == "" || *name == "" || *ip == "" {
		return errors.New("node: --dir, --name and --ip are needed")
	}
	root := loadCA(*dir)
	p := func(n string) string { return filepath.Join(*dir, "nodes", *name, n) }
	server := string(must(os.ReadFile(filepath.Join(*dir, "server"))))
	conf := root.kubeconfig(p("kubeconfig"), server, "system:node:"+*name, "system:nodes")
	crt, key := root.issue("system:node:"+*name, []string{"system:nodes"}, *name, *ip)
	write(p("kubelet.crt"), crt)
	write(p("kubelet.key"), key)
	cg := "/testcluster-" + *name
	if err := makeCgroup(cg); err != nil {
		return err
	}
	beat, lease := "10s", 40
	if *fast {
		beat, lease = "1s", 4
	}
	if *reserve == "" {
		*reserve = "{}"
	}
	names := ""
	if *dns != "" {
		names = fmt.Sprintf("clusterDNS: [%s]\nclusterDomain: cluster.local\n", *dns)
	}
	cfg := write(p("kubelet.yaml"), fmt.Appendf([]byte(names), `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %s
readOnlyPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %s}}
authorization: {mode: AlwaysAllow}
tlsCertFile: %s
tlsPrivateKeyFile: %s
rotateCertificates: false
containerRuntimeEndpoint: %s
cgroupDriver: cgroupfs      # read only while the runtime has no RuntimeConfig call (containerd 1.x); gone in 1.38
cgroupRoot: %s
failCgroupV1: false         # default true since 1.35
failSwapOn: false
enforceNodeAllocatable: []
systemReserved: %s
oomScoreAdj: 0              # lowering it needs CAP_SYS_RESOURCE
nodeStatusUpdateFrequency: %s
nodeStatusReportFrequency: %s
nodeLeaseDurationSeconds: %d
syncFrequency: 5s
imageGCHighThresholdPercent: 100
# The machine is not the nodes' own: what others leave of its memory (on cgroup v1 the page cache counts as used), disk and
# process ids must not have pods evicted. 0%% switches a signal off.
evictionHard: {memory.available: 0%%, nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%, imagefs.inodesFree: 0%%, pid.available: 0%%}
makeIPTablesUtilChains: false
serializeImagePulls: false
podLogsDir: %s
`, *ip, filepath.Join(*dir, "ca.crt"), p("kubelet.crt"), p("kubelet.key"), *cri, cg, *reserve, beat, beat, lease, p("logs")))
	a := []string{"--config=" + cfg, "--kubeconfig=" + conf, "--hostname-override=" + *name, "--node-ip=" + *ip,
		"--root-dir=/var/lib/kubelet", "--cert-dir=" + p("certs")}
	if *labels != "" {
		a = append(a, "--node-labels="+*labels)
	}
	os.Exit(runComponent("kubelet", a))
	return nil
}

// makeCgroup makes the kubelet's root group in every hierarchy: on cgroup v1 the kubelet
// wants it to be there, and an empty cpuset takes no process.
func makeCgroup(name string) error {
	const base = "/sys/fs/cgroup"
	if _, err := os.Stat(base + "/cgroup.controllers"); err == nil { // v2
		return os.MkdirAll(base+name, 0o755)
	}
	hs, err := filepath.Glob(base + "/*")
	if err != nil {
		return err
	}
	for _, h := range hs {
		if err := os.MkdirAll(h+name, 0o755); err != nil {
			return err
		}
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			if b, err := os.ReadFile(filepath.Join(h, f)); err == nil {
				if err := os.WriteFile(filepath.Join(h+name, f), b, 0o644); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
