package servers

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATSOptions of a server or a cluster.
type NATSOptions struct {
	// Config is added to the configuration file: authorization, accounts and
	// whatever else a test needs.
	Config string
	// TLS for clients; nil for none.
	TLS *TLS
}

// NATS is a running nats-server with JetStream on disk.
type NATS struct {
	*Process
	// Name of the server.
	Name string
	// URL without credentials: nats://127.0.0.1:port, tls://… with TLS.
	URL string
	// MonitorURL serves /varz, /jsz and the other monitoring endpoints.
	MonitorURL string

	base string // the part of the configuration that is not the test's
}

// StartNATS starts one server.
func StartNATS(t testing.TB, o NATSOptions) *NATS {
	t.Helper()
	n := newNATS(t, "n0", o, "")
	n.start(t)
	n.wait(t)
	return n
}

// Cluster is three nats-servers.
type Cluster struct {
	Nodes [3]*NATS
	// URL names all three.
	URL string
}

// StartCluster starts a cluster and waits until it can keep streams of three
// replicas.
func StartCluster(t testing.TB, o NATSOptions) *Cluster {
	t.Helper()
	c := &Cluster{}
	var routes, urls []string
	var ports [len(c.Nodes)]int
	for i := range c.Nodes {
		ports[i] = holdPort(t)
		routes = append(routes, fmt.Sprintf("%q", fmt.Sprintf("nats://127.0.0.1:%d", ports[i])))
	}
	for i := range c.Nodes {
		c.Nodes[i] = newNATS(t, fmt.Sprintf("n%d", i), o, fmt.Sprintf(
			"cluster { name: test, listen: \"127.0.0.1:%d\", routes: [%s] }\n", ports[i], strings.Join(routes, ", ")))
		urls = append(urls, c.Nodes[i].URL)
		c.Nodes[i].start(t)
	}
	for _, n := range c.Nodes {
		n.wait(t)
	}
	for deadline := time.Now().Add(startTimeout); !c.complete(t); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the cluster's nodes do not find each other")
		}
	}
	c.URL = strings.Join(urls, ",")
	return c
}

// complete reports whether the cluster's leader has heard of all nodes: until
// then it refuses streams of three replicas.
func (c *Cluster) complete(t testing.TB) bool {
	t.Helper()
	for _, n := range c.Nodes {
		var jsz struct {
			Meta struct {
				Leader   string `json:"leader"`
				Replicas []struct {
					Offline bool `json:"offline"`
				} `json:"replicas"`
			} `json:"meta_cluster"`
		}
		getJSON(t, n.MonitorURL+"/jsz", &jsz)
		if jsz.Meta.Leader != n.Name {
			continue
		}
		online := 0
		for _, r := range jsz.Meta.Replicas {
			if !r.Offline {
				online++
			}
		}
		return online == len(c.Nodes)-1
	}
	return false
}

func newNATS(t testing.TB, name string, o NATSOptions, cluster string) *NATS {
	t.Helper()
	n := &NATS{Process: &Process{Dir: t.TempDir(), name: "nats-server " + name, path: tool(t, "nats-server")}, Name: name}
	port, monitor := holdPort(t), holdPort(t)
	n.URL, n.MonitorURL = fmt.Sprintf("nats://127.0.0.1:%d", port), fmt.Sprintf("http://127.0.0.1:%d", monitor)
	n.base = fmt.Sprintf("server_name: %s\nlisten: \"127.0.0.1:%d\"\nhttp: \"127.0.0.1:%d\"\njetstream { store_dir: \"data\" }\n%s",
		name, port, monitor, cluster)
	if o.TLS != nil {
		n.URL = strings.Replace(n.URL, "nats:", "tls:", 1)
		cert, key := o.TLS.CA.Issue(t, name)
		n.base += fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: %t }\n", cert, key, o.TLS.CA.File, o.TLS.ClientCerts)
	}
	n.args = []string{"-c", n.write(t, "nats.conf", n.base+o.Config)}
	// Also that the cluster's leader is known, and that the streams are up to
	// date.
	n.ready = func(ctx context.Context, _ *tls.Config) error {
		return httpOK(ctx, http.DefaultClient, n.MonitorURL+"/healthz")
	}
	return n
}

// Write replaces NATSOptions.Config, which counts from the next start on.
func (n *NATS) Write(t testing.TB, config string) {
	t.Helper()
	n.write(t, "nats.conf", n.base+config)
}

// SetConfig replaces NATSOptions.Config under the running server.
func (n *NATS) SetConfig(t testing.TB, config string) {
	t.Helper()
	before := n.varz(t)
	n.Write(t, config)
	n.Reload(t)
	for n.varz(t).Equal(before) {
		time.Sleep(5 * time.Millisecond) // until the server has it
	}
}

// varz is when the server read its configuration.
func (n *NATS) varz(t testing.TB) time.Time {
	t.Helper()
	var v struct {
		ConfigLoadTime time.Time `json:"config_load_time"`
	}
	getJSON(t, n.MonitorURL+"/varz", &v)
	return v.ConfigLoadTime
}

// Connect connects without credentials until the test ends.
func (n *NATS) Connect(t testing.TB, o ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, n.URL, o)
}

// Connect connects to all nodes without credentials until the test ends.
func (c *Cluster) Connect(t testing.TB, o ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, c.URL, o)
}

func connect(t testing.TB, url string, o []nats.Option) *nats.Conn {
	t.Helper()
	o = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond)}, o...)
	nc, err := nats.Connect(url, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Leader is the node that leads a stream.
func (c *Cluster) Leader(t testing.TB, nc *nats.Conn, stream string) *NATS {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for {
		s, err := js.Stream(ctx, stream)
		if ctx.Err() != nil {
			t.Fatalf("stream %s has no leader: %v", stream, err)
		}
		if err != nil || s.CachedInfo().Cluster == nil {
			continue // an election runs; each question takes its time
		}
		for _, n := range c.Nodes {
			if n.Name == s.CachedInfo().Cluster.Leader {
				return n
			}
		}
	}
}
