// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	// A call to the bucket may take callTime. A transfer may additionally take the time that its
	// bytes need at bytesPerSecondMin.
	callTime          = 30 * time.Second
	bytesPerSecondMin = 256 << 10
	// triesMax is how often a call is made before it fails. The next round makes it again.
	triesMax = 3
	// manifestBytesMax bounds a manifest, and objectsMax the objects of a month.
	manifestBytesMax = 16 << 20
	objectsMax       = 50_000
	endpointDefault  = "https://s3.amazonaws.com"
)

// Place is where an archive is.
type Place struct {
	URL      string // s3://BUCKET or s3://BUCKET/PREFIX
	Endpoint string // the URL of the server; "" means that of AWS
	Region   string // "" means that the server is asked
}

// Bucket is a bucket of S3 with a prefix. A Bucket is safe for concurrent use.
type Bucket struct {
	client *minio.Client
	bucket string
	prefix string // "" or ends with a slash
}

// OpenBucket returns the bucket of a place. OpenBucket makes no call. The credentials are those in
// the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, else those in the file
// ~/.aws/credentials, else those of the machine's role.
func OpenBucket(p Place) (*Bucket, error) {
	at, err := url.Parse(p.URL)
	if err != nil || at.Scheme != "s3" || at.Host == "" || at.RawQuery != "" || at.User != nil {
		return nil, fmt.Errorf("the archive %q is no place in S3: write s3://BUCKET/PREFIX", p.URL)
	}
	server := p.Endpoint
	if server == "" {
		server = endpointDefault
	}
	endpoint, err := url.Parse(server)
	if err != nil || endpoint.Scheme != "https" && endpoint.Scheme != "http" || endpoint.Host == "" || strings.Trim(endpoint.Path, "/") != "" {
		return nil, fmt.Errorf("the endpoint %q is no address of a server: write https://HOST or https://HOST:PORT", server)
	}
	if endpoint.Scheme == "http" && !isLoopback(endpoint.Hostname()) {
		return nil, fmt.Errorf("the endpoint %q would send events over the network without encryption: write https", server)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: callTime, IdleConnTimeout: time.Minute, DisableCompression: true}
	client, err := minio.New(endpoint.Host, &minio.Options{Secure: endpoint.Scheme == "https", Region: p.Region, Transport: transport, MaxRetries: triesMax,
		Creds: credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}})})
	if err != nil {
		return nil, fmt.Errorf("the endpoint %q: %w", server, err)
	}
	b := &Bucket{client: client, bucket: at.Host}
	if prefix := strings.Trim(at.Path, "/"); prefix != "" {
		b.prefix = prefix + "/"
	}
	return b, nil
}

// isLoopback reports whether a host is this machine.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// String returns the place.
func (b *Bucket) String() string { return "s3://" + b.bucket + "/" + b.prefix }

// withTransferTimeout returns a context for the transfer of the given number of bytes.
func withTransferTimeout(ctx context.Context, bytes int64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callTime+time.Duration(bytes/bytesPerSecondMin)*time.Second)
}

// Bucket.put writes an object in one call.
func (b *Bucket) put(ctx context.Context, key, kind string, from io.Reader, size int64) error {
	ctx, cancel := withTransferTimeout(ctx, size)
	defer cancel()
	_, err := b.client.PutObject(ctx, b.bucket, b.prefix+key, from, size, minio.PutObjectOptions{ContentType: kind, SendContentMd5: true, DisableMultipart: true})
	if err != nil {
		return fmt.Errorf("write %s%s: %w", b, key, err)
	}
	return nil
}

// Put writes an object of at most 5 GiB.
func (b *Bucket) Put(ctx context.Context, key string, from io.Reader, size int64) error {
	return b.put(ctx, key, "text/plain", from, size)
}

// Get reads an object of at most max bytes to a writer.
func (b *Bucket) Get(ctx context.Context, key string, max int64, to io.Writer) error {
	_, _, err := b.get(ctx, key, max, to)
	return err
}

// errMissing is the error for an object that does not exist.
var errMissing = errors.New("there is no such object")

// Bucket.get reads an object of at most max bytes to a writer, and returns its size and SHA-256.
func (b *Bucket) get(ctx context.Context, key string, max int64, to io.Writer) (size int64, sum []byte, err error) {
	ctx, cancel := withTransferTimeout(ctx, max)
	defer cancel()
	from, err := b.client.GetObject(ctx, b.bucket, b.prefix+key, minio.GetObjectOptions{})
	if err == nil {
		defer from.Close() //nolint:errcheck // nothing was written
		hash := sha256.New()
		size, err = io.Copy(io.MultiWriter(to, hash), io.LimitReader(from, max+1))
		sum = hash.Sum(nil)
	}
	if code := minio.ToErrorResponse(err).Code; code == minio.NoSuchKey {
		err = errMissing
	}
	if err != nil {
		return 0, nil, fmt.Errorf("read %s%s: %w", b, key, err)
	}
	return size, sum, nil
}

// Bucket.text reads a small object.
func (b *Bucket) text(ctx context.Context, key string) ([]byte, error) {
	var text bytes.Buffer
	_, _, err := b.get(ctx, key, manifestBytesMax, &text)
	return text.Bytes(), err
}

// Bucket.list returns the keys that begin with a text.
func (b *Bucket) list(ctx context.Context, begin string) (keys []string, err error) {
	ctx, cancel := withTransferTimeout(ctx, 0)
	defer cancel()
	for found := range b.client.ListObjectsIter(ctx, b.bucket, minio.ListObjectsOptions{Prefix: b.prefix + begin, Recursive: true}) {
		if found.Err != nil {
			return nil, fmt.Errorf("list %s%s: %w", b, begin, found.Err)
		}
		if len(keys) == objectsMax {
			return nil, fmt.Errorf("list %s%s: there are more than %d objects", b, begin, objectsMax)
		}
		keys = append(keys, strings.TrimPrefix(found.Key, b.prefix))
	}
	return keys, ctx.Err()
}

// Bucket.remove removes an object.
func (b *Bucket) remove(ctx context.Context, key string) error {
	ctx, cancel := withTransferTimeout(ctx, 0)
	defer cancel()
	if err := b.client.RemoveObject(ctx, b.bucket, b.prefix+key, minio.RemoveObjectOptions{}); err != nil {
		return fmt.Errorf("remove %s%s: %w", b, key, err)
	}
	return nil
}

// createTemporary returns a new file. The file is deleted when it is closed. On most systems it is
// also deleted if the process is killed.
func createTemporary() (file *os.File, done func(), err error) {
	if file, err = os.CreateTemp("", "penstock-archive-*"); err != nil {
		return nil, nil, err
	}
	removed := os.Remove(file.Name()) == nil
	return file, func() {
		_ = file.Close()
		if !removed {
			_ = os.Remove(file.Name())
		}
	}, nil
}
